// y[i] = program(x0[i], x1[i], …) over a strided space. The space is cut into tiles of up to kTile
// elements: a piece of one innermost row or, where rows are short, several whole rows. A tile's
// inputs become registers (in place where they lie contiguously in the class's own dtype), the
// program runs over them, and its last instruction writes straight to y where it can. y may be the
// very memory of an input with the same strides and element size: a tile is read before written.
#include "kernels/cpu/check.h"
#include "kernels/cpu/pointwise_chain.h"

namespace npusim::cpu::NPUSIM_ISA {
namespace {

using Params = abi::PointwiseParams;

// Whether elements of a dtype are numbers of the class as they stand.
bool is_native(int32_t dtype, int32_t compute) {
  constexpr int32_t kNative[] = {static_cast<int32_t>(abi::DType::kFloat32),
                                 static_cast<int32_t>(abi::DType::kFloat64),
                                 static_cast<int32_t>(abi::DType::kInt64)};
  return dtype == kNative[compute];
}

// How the space is cut. Outer dimensions are all but the last.
struct Tiling {
  int64_t inner = 1, outer = 1;  // elements of a row, rows
  int64_t rows = 1;              // whole rows of a tile; 1 where a row makes one tile or more
  int64_t per_row = 1;           // tiles of a row
  int64_t tiles = 0;
};

Tiling tiling(const Params& p) {
  Tiling t;
  for (int d = 0; d < p.rank; ++d) {
    if (p.shape[d] == 0) return t;
    if (d + 1 < p.rank) t.outer *= p.shape[d];
  }
  t.inner = p.rank ? p.shape[p.rank - 1] : 1;
  if (t.inner > kTile) {
    t.per_row = (t.inner - 1) / kTile + 1;
    t.tiles = t.outer * t.per_row;
    return t;
  }
  t.rows = kTile / t.inner;
  // A multiple of whole vectors in a tile keeps its inputs and outputs in place.
  if (t.rows > kLanes) t.rows -= t.rows % kLanes;
  if (t.rows > t.outer) t.rows = t.outer;
  t.tiles = (t.outer - 1) / t.rows + 1;
  return t;
}

// A tile: rows [row, row + rows) of the space, columns [column, column + columns) of each.
struct Tile {
  int64_t row, rows, column, columns;
  int64_t index[abi::kRank];  // of its first row
  int64_t elements() const { return rows * columns; }
};

// One operand as the tiles see it.
struct Walk {
  int64_t strides[abi::kRank];  // 0 where the size is 1
  int64_t inner;                // stride between the elements of a row
  int64_t size;                 // bytes of an element
  bool flat;                    // rows follow each other as their elements do
  bool repeats;                 // every row is the same memory
};

Walk walk(const Params& p, const int64_t* strides, int32_t dtype) {
  Walk w{{}, 1, element_size(dtype), true, true};
  const int last = p.rank - 1;
  if (last >= 0 && p.shape[last] != 1) w.inner = strides[last];
  int64_t step = last >= 0 ? w.inner * p.shape[last] : 0;
  for (int d = last - 1; d >= 0; --d) {
    if (p.shape[d] == 1) continue;
    w.strides[d] = strides[d];
    w.flat &= strides[d] == step;
    w.repeats &= strides[d] == 0;
    step *= p.shape[d];
  }
  return w;
}

int64_t offset_of(const Params& p, const Walk& w, const Tile& tile) {
  int64_t offset = tile.column * w.inner;
  for (int d = 0; d + 1 < p.rank; ++d) offset += tile.index[d] * w.strides[d];
  return offset;
}

// Calls f(offset) with an operand's offset at each row of the tile.
template <typename F>
void for_each_row(const Params& p, const Walk& w, const Tile& tile, F f) {
  int64_t index[abi::kRank];
  for (int d = 0; d + 1 < p.rank; ++d) index[d] = tile.index[d];
  int64_t offset = offset_of(p, w, tile);
  for (int64_t r = 0; r < tile.rows; ++r) {
    f(offset);
    for (int d = p.rank - 2; d >= 0; --d) {
      offset += w.strides[d];
      if (++index[d] < p.shape[d]) break;
      index[d] = 0;
      offset -= p.shape[d] * w.strides[d];
    }
  }
}

int32_t count_registers(const Params& p) {
  int32_t registers = p.n_inputs;
  for (int i = 0; i < p.n_instructions; ++i) {
    const int32_t dst = instruction(p, i).dst;
    registers = dst >= registers ? dst + 1 : registers;
  }
  return registers;
}

// The work of one call: moves tiles through a machine.
class Runner {
 public:
  explicit Runner(const KernelCall& call)
      : p_(*static_cast<const Params*>(call.params)),
        call_(call),
        machine_(p_, call.scratch, count_registers(p_), call.failure),
        tiling_(tiling(p_)),
        y_(walk(p_, p_.y_strides, p_.y_dtype)),
        end_(y_.inner == 1 ? byte_end(p_) : ByteEnd{}),
        chain_(byte_chain(p_, end_)) {
    for (int i = 0; i < p_.n_inputs; ++i)
      x_[i] = walk(p_, p_.x_strides + i * abi::kRank, p_.x_dtype[i]);
    settle_chain();
    for (int i = 0; i < p_.n_instructions; ++i) overwritten_ |= 1u << instruction(p_, i).dst;
    last_is_result_ =
        p_.n_instructions > 0 && instruction(p_, p_.n_instructions - 1).dst == p_.result;
  }

  void run(int64_t first, int64_t last) {
    for (int64_t t = first; t < last; ++t) {
      Tile tile = locate(t);
      // A tail that does not fill a vector goes on its own, so that the rest stays in place.
      const int64_t tail = tile.rows == 1 ? tile.columns % kLanes : 0;
      if (tail != 0 && tail != tile.columns) {
        tile.columns -= tail;
        process(tile);
        tile.column += tile.columns;
        tile.columns = tail;
      }
      process(tile);
    }
  }

 private:
  Tile locate(int64_t t) const {
    Tile tile{t, 1, 0, tiling_.inner, {}};
    if (tiling_.per_row > 1) {
      tile.row = t / tiling_.per_row;
      tile.column = t % tiling_.per_row * kTile;
      const int64_t left = tiling_.inner - tile.column;
      tile.columns = left < kTile ? left : kTile;
    } else {
      tile.row = t * tiling_.rows;
      const int64_t left = tiling_.outer - tile.row;
      tile.rows = left < tiling_.rows ? left : tiling_.rows;
    }
    int64_t rest = tile.row;
    for (int d = p_.rank - 2; d > 0 && rest != 0; --d) {
      tile.index[d] = rest % p_.shape[d];
      rest /= p_.shape[d];
    }
    tile.index[0] = rest;
    return tile;
  }

  // Whether the tile's elements of an operand can stay where they are.
  static bool in_place(const Walk& w, const Tile& tile) {
    return w.inner == 1 && (tile.rows == 1 || w.flat) && tile.elements() % kLanes == 0;
  }

  // A chain goes along rows that are long enough, over elements that lie next to each other; where
  // all operands are flat, or one number, the tile is a row.
  void settle_chain() {
    bool direct = chain_.x >= 0;
    one_row_ = y_.flat;
    const auto settle = [&](int32_t input) {
      const Walk& w = x_[input];
      direct &= w.inner == 1 || w.inner == 0;
      one_row_ &= w.inner == 0 ? w.repeats : w.flat;
    };
    if (direct) settle(chain_.x);
    for (int s = 0; s < chain_.count; ++s) {
      if (takes_input(s)) settle(chain_.steps[s].other);
    }
    if (!direct || (!one_row_ && tiling_.inner < kLanes)) chain_.x = -1;
  }
  bool takes_input(int s) const {
    return chain_.steps[s].op != abi::Opcode::kRelu && chain_.steps[s].other >= 0;
  }

  ChainOperand chain_operand(int32_t input, int64_t offset) const {
    const Walk& w = x_[input];
    const std::byte* at = static_cast<const std::byte*>(call_.operands[input]) + offset * w.size;
    const int32_t dtype = p_.x_dtype[input];
    if (w.inner == 0) return {ChainOperand::kOne, nullptr, decode_one<float>(dtype, at)};
    if (w.size == sizeof(float)) return {ChainOperand::kFloats, at, 0};
    const bool is_signed = dtype == static_cast<int32_t>(abi::DType::kInt8);
    return {is_signed ? ChainOperand::kSigned : ChainOperand::kUnsigned, at, 0};
  }

  [[gnu::noinline]] void process_chain(Tile tile) {
    auto* y = static_cast<uint8_t*>(call_.operands[p_.n_inputs]);
    const int64_t rows = one_row_ ? 1 : tile.rows;
    const int64_t columns = one_row_ ? tile.elements() : tile.columns;
    for (int64_t r = 0; r < rows; ++r) {
      ChainRow row{chain_operand(chain_.x, offset_of(p_, x_[chain_.x], tile)), {}};
      for (int s = 0; s < chain_.count; ++s) {
        const int32_t other = chain_.steps[s].other;
        if (takes_input(s)) {
          row.others[s] = chain_operand(other, offset_of(p_, x_[other], tile));
        } else if (other < 0) {
          const auto constant = static_cast<float>(p_.constants[-1 - other]);
          row.others[s] = {ChainOperand::kOne, nullptr, constant};
        }
      }
      run_chain(chain_, end_, row, columns, y + offset_of(p_, y_, tile));
      for (int d = p_.rank - 2; d >= 0 && ++tile.index[d] == p_.shape[d]; --d) tile.index[d] = 0;
    }
  }

  void process(const Tile& tile) {
    if (chain_.x >= 0) return process_chain(tile);
    for (int i = 0; i < p_.n_inputs; ++i) load_input(i, tile);
    std::byte* y = static_cast<std::byte*>(call_.operands[p_.n_inputs]);
    const bool direct =
        last_is_result_ && is_native(p_.y_dtype, p_.result_class) && in_place(y_, tile);
    machine_.execute(p_.n_instructions - end_.instructions, tile.elements(),
                     direct ? y + offset_of(p_, y_, tile) * y_.size : nullptr);
    if (!direct) store_result(tile, y);
  }

  void load_input(int i, const Tile& tile) {
    const Walk& w = x_[i];
    const auto* x = static_cast<const std::byte*>(call_.operands[i]);
    if (is_native(p_.x_dtype[i], p_.x_class[i]) && in_place(w, tile)) {
      machine_.set(i, {x + offset_of(p_, w, tile) * w.size, 1});
      return;
    }
    with_class(p_.x_class[i], [&](auto type) { gather<decltype(type)>(i, tile, x); });
  }

  template <typename C>
  void gather(int i, const Tile& tile, const std::byte* x) {
    const Walk& w = x_[i];
    auto* out = static_cast<C*>(machine_.storage(i));
    if (w.inner == 0 && (tile.rows == 1 || w.repeats)) {
      const C value = decode_one<C>(p_.x_dtype[i], x, offset_of(p_, w, tile));
      for (int lane = 0; lane < kLanes; ++lane) out[lane] = value;
      machine_.set(i, {out, 0});
      return;
    }
    // The same rows again: they are still in the register unless an instruction reused it.
    const bool kept = tile.rows > 1 && w.repeats && !(overwritten_ >> i & 1);
    if (w.flat) {  // one run, not row by row
      decode_run(p_.x_dtype[i], x + offset_of(p_, w, tile) * w.size, w.inner, tile.elements(), out);
    } else if (!kept || loaded_rows_[i] < tile.rows) {
      for_each_row(p_, w, tile, [&](int64_t offset) {
        decode_run(p_.x_dtype[i], x + offset * w.size, w.inner, tile.columns, out);
        out += tile.columns;
      });
      loaded_rows_[i] = kept ? tile.rows : 0;
    }
    machine_.set(i, {machine_.storage(i), 1});
  }

  // The same of a program that ends in bytes, whose last instructions were left out.
  void store_bytes_of(const Tile& tile, uint8_t* y) {
    Register x = machine_.get(end_.x);
    if (y_.flat) return store_byte_end(end_, x, tile.elements(), y + offset_of(p_, y_, tile));
    for_each_row(p_, y_, tile, [&](int64_t offset) {
      store_byte_end(end_, x, tile.columns, y + offset);
      x.data = static_cast<const float*>(x.data) + x.step * tile.columns;
    });
  }

  void store_result(const Tile& tile, std::byte* y) {
    if (end_.instructions > 0) return store_bytes_of(tile, reinterpret_cast<uint8_t*>(y));
    with_class(p_.result_class, [&](auto type) {
      using C = decltype(type);
      const Register result = machine_.get(p_.result);
      const auto* from = static_cast<const C*>(result.data);
      if (y_.flat) {
        std::byte* to = y + offset_of(p_, y_, tile) * y_.size;
        return encode_run(from, result.step, tile.elements(), p_.y_dtype, to, y_.inner);
      }
      for_each_row(p_, y_, tile, [&](int64_t offset) {
        encode_run(from, result.step, tile.columns, p_.y_dtype, y + offset * y_.size, y_.inner);
        from += result.step * tile.columns;
      });
    });
  }

  const Params& p_;
  const KernelCall& call_;
  TileMachine machine_;
  const Tiling tiling_;
  const Walk y_;
  const ByteEnd end_;
  ByteChain chain_;
  bool one_row_ = false;  // a tile of a chain is
  Walk x_[abi::kPointwiseInputs];
  int64_t loaded_rows_[abi::kPointwiseInputs] = {};
  uint32_t overwritten_ = 0;
  bool last_is_result_ = false;
};

// Tiles of one task: about 16k elements of cheap work, fewer where instructions are expensive.
// Below two tasks' worth, waking another worker costs more than it saves.
int64_t tiles_per_task(const Params& p) {
  int64_t weight = 1;
  for (int i = 0; i < p.n_instructions; ++i) {
    const abi::Opcode op = instruction(p, i).op;
    const bool costly = (op >= abi::Opcode::kExp && op <= abi::Opcode::kErf) ||
                        (op >= abi::Opcode::kGelu && op <= abi::Opcode::kMish) ||
                        op == abi::Opcode::kPow || op == abi::Opcode::kAtan2;
    weight += costly ? 4 : 0;
  }
  return weight < 16 ? 16 / weight : 1;
}

int64_t count_tasks(const void* params, int64_t) {
  const Params& p = *static_cast<const Params*>(params);
  const int64_t tiles = tiling(p).tiles, each = tiles_per_task(p);
  return tiles <= 2 * each ? (tiles > 0 ? 1 : 0) : (tiles - 1) / each + 1;
}

void run(const KernelCall& call) {
  const Params& p = *static_cast<const Params*>(call.params);
  const int64_t tiles = tiling(p).tiles;
  const int64_t each = count_tasks(&p, 1) == 1 ? tiles : tiles_per_task(p);
  const int64_t last = call.end * each;
  Runner(call).run(call.begin * each, last < tiles ? last : tiles);
}

int64_t scratch(const void* params) {
  return (count_registers(*static_cast<const Params*>(params)) + 1) * kRegisterBytes;
}

// ---- check

bool allows(abi::Opcode op, int32_t compute) {
  using enum abi::Opcode;
  if (op == kBitwiseNot || (op >= kBitwiseAnd && op <= kShiftRight)) return compute == kClassI;
  if (op == kToF16 || op == kToBf16) return compute == kClassF;
  if (compute != kClassI) return true;
  const bool integer_unary = op == kCopy || op == kNeg || op == kAbs || op == kSign ||
                             op == kRelu || op == kLogicalNot || (op >= kToF && op <= kToBool);
  const bool integer_binary = op >= kAdd && op != kDiv && op != kAtan2 && op != kFma;
  return op < kAdd ? integer_unary : integer_binary;
}

// The class each register holds while a program is read; -1 before it is written.
struct Classes {
  int32_t of[abi::kPointwiseRegisters];

  bool reads(int32_t arg, int32_t compute) const {
    if (arg < 0) return arg >= -abi::kPointwiseInstructions;
    return arg < abi::kPointwiseRegisters && of[arg] == compute;
  }
};

const char* check_instruction(const Instruction& ins, Classes& classes) {
  const auto code = static_cast<int32_t>(ins.op);
  if (code < 0 || code >= 128 || abi::kOpcodeArity[code] == 0) return "an opcode does not exist";
  if (ins.compute < kClassF || ins.compute > kClassI) return "a compute class does not exist";
  if (!allows(ins.op, ins.compute)) return "an opcode does not work on its compute class";
  if (ins.dst < 0 || ins.dst >= abi::kPointwiseRegisters) return "a register does not exist";
  for (int k = 0; k < abi::kOpcodeArity[code]; ++k) {
    const bool condition = ins.op == abi::Opcode::kWhere && k == 0;
    if (!classes.reads(ins.args[k], condition ? int32_t{kClassI} : ins.compute))
      return "an instruction reads a register that does not hold its class";
  }
  classes.of[ins.dst] = result_class(ins.op, ins.compute);
  return nullptr;
}

const char* check_program(const Params& p) {
  Classes classes;
  for (int32_t& of : classes.of) of = -1;
  for (int i = 0; i < p.n_inputs; ++i) {
    if (p.x_class[i] < kClassF || p.x_class[i] > kClassI) return "a compute class does not exist";
    classes.of[i] = p.x_class[i];
  }
  for (int i = 0; i < p.n_instructions; ++i) {
    if (const char* why = check_instruction(instruction(p, i), classes)) return why;
  }
  const bool has_result = p.result >= 0 && p.result < abi::kPointwiseRegisters &&
                          p.result_class >= 0 && classes.of[p.result] == p.result_class;
  return has_result ? nullptr : "the result register does not hold the result's class";
}

[[gnu::cold]] const char* check(const KernelCheck& c) {
  const Params& p = *static_cast<const Params*>(c.params);
  if (p.rank < 0 || p.rank > abi::kRank) return "the rank is out of range";
  if (p.n_inputs < 0 || p.n_inputs > abi::kPointwiseInputs) return "too many inputs";
  if (p.n_instructions < 0 || p.n_instructions > abi::kPointwiseInstructions)
    return "too many instructions";
  const auto inputs = static_cast<size_t>(p.n_inputs);
  if (const char* why = operand_count(c, inputs + 1)) return why;
  for (size_t i = 0; i < inputs; ++i) {
    const int64_t size = element_size(p.x_dtype[i]);
    if (size == 0) return "a dtype does not exist";
    const int64_t* strides = p.x_strides + i * abi::kRank;
    if (const char* why = Region().dims(p.shape, strides, p.rank).reads(c, i, size)) return why;
  }
  const int64_t size = element_size(p.y_dtype);
  if (size == 0) return "a dtype does not exist";
  if (const char* why = Region().dims(p.shape, p.y_strides, p.rank).writes(c, inputs, size))
    return why;
  return check_program(p);
}

int in_place(const void*, int read) {
  return read >= 0 ? 0 : -1;
}

int64_t work(const void* params) {
  const auto& p = *static_cast<const Params*>(params);
  return saturated({saturated(p.shape, p.rank), 1 + p.n_inputs + p.n_instructions});
}

}  // namespace

extern const KernelEntry pointwise_kernel;
const KernelEntry pointwise_kernel = {"pointwise", Params::kSchema, sizeof(Params), run,      check,
                                      count_tasks, scratch,         nullptr,        in_place, work};

}  // namespace npusim::cpu::NPUSIM_ISA
