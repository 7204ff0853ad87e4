// copy and fill against loops over every element, on every instruction set of this machine: random
// shapes and strides (transposed, padded, flipped, broadcast), every element size, the large
// transpositions of layout changes, the refusals, and mutated parameters.
#include "tests/cpp/mutation.h"
#include "tests/cpp/strided.h"

namespace npusim::cpu {
namespace {

constexpr int32_t kDtypeOfSize[] = {0, 8, 1, 0, 5, 0, 0, 0, 4};  // by bytes

abi::CopyParams copy_params(int size, const Layout& x, const Layout& y) {
  abi::CopyParams p = {};
  p.element_size = size;
  p.rank = x.rank;
  std::copy_n(x.shape, x.rank, p.shape);
  std::copy_n(x.strides, x.rank, p.x_strides);
  std::copy_n(y.strides, y.rank, p.y_strides);
  return p;
}

void check_copy(const KernelEntry& kernel, int size, const Layout& x, const Layout& y,
                std::mt19937& random) {
  const int32_t dtype = kDtypeOfSize[size];
  std::vector<Operand> operands = {operand_of(x, dtype, random), operand_of(y, dtype, random)};
  const Operand before = operands[1];
  run_kernel(kernel, copy_params(size, x, y), operands, random);
  for (int64_t i = 0; i < x.count(); ++i) {
    const std::byte* from = operands[0].bytes.data() + operands[0].offset + x.offset(i) * size;
    const std::byte* to = operands[1].bytes.data() + operands[1].offset + y.offset(i) * size;
    expect(std::memcmp(from, to, static_cast<size_t>(size)) == 0, "copy", "an element differs");
  }
  expect(gaps_untouched(before, operands[1], y, dtype), "copy", "a gap of y was written");
}

Layout layout(std::initializer_list<int64_t> shape, std::initializer_list<int64_t> strides) {
  Layout out;
  out.rank = static_cast<int>(shape.size());
  std::copy(shape.begin(), shape.end(), out.shape);
  std::copy(strides.begin(), strides.end(), out.strides);
  return out;
}

void test_copy(const TestedIsa& isa, std::mt19937& random) {
  const KernelEntry& kernel = isa["copy"];
  for (const int size : {1, 2, 4, 8}) {
    for (int i = 0; i < 150; ++i) {
      const Layout shape = random_shape(5, 20000, random);
      const Layout x = random_layout(shape, kPermuted | kPadded | kFlipped | kBroadcast, random);
      check_copy(kernel, size, x, random_layout(shape, kPermuted | kPadded | kFlipped, random),
                 random);
    }
    // Channels first to last and back, with and without sizes that divide.
    for (const int64_t c : {3, 16, 50, 128}) {
      const int64_t hw = 37 * 28;
      const Layout first = layout({2, c, hw}, {c * hw, hw, 1});
      const Layout last = layout({2, c, hw}, {c * hw, 1, c});
      check_copy(kernel, size, first, last, random);
      check_copy(kernel, size, last, first, random);
    }
    check_copy(kernel, size, layout({300000}, {1}), layout({300000}, {1}), random);
    check_copy(kernel, size, layout({0, 5}, {5, 1}), layout({0, 5}, {5, 1}), random);
  }
}

void test_copy_refusals(const TestedIsa& isa, std::mt19937& random) {
  const KernelEntry& kernel = isa["copy"];
  const Layout shape = layout({4, 30}, {30, 1});
  std::vector<Operand> operands = {operand_of(shape, 0, random), operand_of(shape, 0, random)};
  const abi::CopyParams sound = copy_params(4, shape, shape);
  expect(refusal(kernel, sound, operands).empty(), "copy", "sound parameters are refused");
  auto refused = [&](auto change, const char* what) {
    abi::CopyParams p = sound;
    change(p);
    expect(!refusal(kernel, p, operands).empty(), "copy accepts", what);
  };
  refused([](auto& p) { p.shape[1] = 31; }, "a row past the end");
  refused([](auto& p) { p.shape[0] = -1; }, "a negative size");
  refused([](auto& p) { p.x_strides[0] = -30; }, "a stride before the buffer");
  refused([](auto& p) { p.element_size = 3; }, "an element of 3 bytes");
  refused([](auto& p) { p.rank = 9; }, "nine dimensions");
  refused([](auto& p) { p.y_strides[0] = 0; }, "elements that collide");
  refused([](auto& p) { p.shape[0] = p.x_strides[0] = int64_t{1} << 62; }, "an overflow");
  operands.pop_back();
  expect(!refusal(kernel, sound, operands).empty(), "copy", "accepts a missing operand");
}

void test_fill(const TestedIsa& isa, std::mt19937& random) {
  const KernelEntry& kernel = isa["fill"];
  for (const int size : {1, 2, 4, 8}) {
    for (int i = 0; i < 60; ++i) {
      const Layout y = random_layout(random_shape(4, i == 0 ? 300000 : 20000, random),
                                     kPermuted | kPadded | kFlipped, random);
      abi::FillParams p = {};
      p.element_size = size;
      p.rank = y.rank;
      p.value = 0x1122334455667788;
      std::copy_n(y.shape, y.rank, p.shape);
      std::copy_n(y.strides, y.rank, p.y_strides);
      std::vector<Operand> operands = {operand_of(y, kDtypeOfSize[size], random)};
      const Operand before = operands[0];
      run_kernel(kernel, p, operands, random);
      for (int64_t e = 0; e < y.count(); ++e) {
        const std::byte* to = operands[0].bytes.data() + operands[0].offset + y.offset(e) * size;
        expect(std::memcmp(to, &p.value, static_cast<size_t>(size)) == 0, "fill", "wrong value");
      }
      expect(gaps_untouched(before, operands[0], y, kDtypeOfSize[size]), "fill", "wrote a gap");
      run_mutations(kernel, p, operands, 40, random);
    }
  }
}

void test_mutations(const TestedIsa& isa, std::mt19937& random) {
  for (int i = 0; i < 300; ++i) {
    const Layout shape = random_shape(4, 500, random);
    const Layout x = random_layout(shape, kPermuted | kPadded | kFlipped | kBroadcast, random);
    const Layout y = random_layout(shape, kPermuted | kPadded, random);
    const int size = 1 << random() % 4;
    const std::vector<Operand> operands = {operand_of(x, kDtypeOfSize[size], random),
                                           operand_of(y, kDtypeOfSize[size], random)};
    run_mutations(isa["copy"], copy_params(size, x, y), operands, 40, random);
  }
}

}  // namespace
}  // namespace npusim::cpu

int main() {
  using namespace npusim::cpu;
  for (const TestedIsa& isa : isas({"copy", "fill"})) {
    std::mt19937 random(1);
    test_copy(isa, random);
    test_copy_refusals(isa, random);
    test_fill(isa, random);
    test_mutations(isa, random);
    std::printf("%s: copy and fill agree\n", isa.name);
  }
}
