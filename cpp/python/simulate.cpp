#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <utility>

#include "cpp/python/bindings.h"
#include "cpp/runtime/prompt_runs.h"
#include "cpp/simulate/tile_choice.h"
#include "cpp/simulate/walk.h"

namespace py = pybind11;

namespace npusim::python {
namespace {

using namespace simulate;

Array read_array(const py::dict& d) {
  return {.rows = d["rows"].cast<int64_t>(),
          .cols = d["cols"].cast<int64_t>(),
          .arrays = d["per_core"].cast<int64_t>(),
          .min_stream_rows = d["min_stream_rows"].cast<int64_t>(),
          .overlaps = d["overlaps"].cast<bool>(),
          .macs_per_cycle = d["macs_per_pe_cycle"].cast<double>(),
          .dataflow = &Dataflow::named(d["dataflow"].cast<std::string>())};
}

Memory read_memory(const py::dict& d) {
  return {.dram_bytes_per_cycle = d["dram_bytes_per_cycle"].cast<double>(),
          .dram_channels = d["dram_channels"].cast<int64_t>(),
          .interleave_bytes = d["interleave_bytes"].cast<int64_t>(),
          .read_latency = d["read_latency_ticks"].cast<int64_t>(),
          .write_latency = d["write_latency_ticks"].cast<int64_t>(),
          .noc_bytes_per_cycle = d["noc_bytes_per_cycle"].cast<double>(),
          .hop_cycles = d["hop_cycles"].cast<int64_t>(),
          .hops = d["hops"].cast<std::vector<int64_t>>(),
          .dma_bytes_per_cycle = d["dma_bytes_per_cycle"].cast<double>(),
          .dma_channels = d["dma_channels"].cast<int64_t>(),
          .setup_cycles = d["setup_cycles"].cast<int64_t>(),
          .burst_bytes = d["burst_bytes"].cast<int64_t>(),
          .max_dims = d["max_dims"].cast<int64_t>(),
          .sram_bytes_per_cycle = d["sram_bytes_per_cycle"].cast<double>(),
          .acc_bytes_per_cycle = d["acc_bytes_per_cycle"].cast<double>(),
          .sram_accesses = d["sram_accesses"].cast<int64_t>()};
}

std::vector<VectorPass> read_vector(const py::handle& rows) {
  std::vector<VectorPass> out;
  for (const auto& [elements, cycles] : rows.cast<std::vector<std::pair<double, double>>>()) {
    out.push_back({elements, cycles});
  }
  return out;
}

Work read_work(const py::dict& d) {
  Work work{.on_array = d["on_array"].cast<bool>(),
            .sizes = d["sizes"].cast<std::array<int64_t, 4>>(),
            .tile = d["tile"].cast<std::array<int64_t, 4>>(),
            .loops = d["loops"].cast<std::vector<int>>(),
            .taps = d["taps"].cast<int64_t>(),
            .depthwise = d["depthwise"].cast<bool>(),
            .double_buffer = d["double_buffer"].cast<bool>(),
            .element_bytes = d["element_bytes"].cast<int64_t>(),
            .vector_rate = d["vector_rate"].cast<double>(),
            .vector = read_vector(d["vector"]),
            .operands = {}};
  using Row = std::tuple<int, bool, bool, bool, int64_t, int64_t>;
  for (const auto& [axes, write, moved, resident, total, row] :
       d["operands"].cast<std::vector<Row>>()) {
    work.operands.push_back({axes, write, moved, resident, total, row});
  }
  return work;
}

int64_t cycles(const py::dict& array, int64_t m, int64_t n, int64_t k, int64_t repeats) {
  return array_cycles(read_array(array), {m, n, k}, repeats);
}

Machine read_machine(const py::dict& d) {
  return {.array = read_array(d["array"]),
          .memory = read_memory(d["memory"]),
          .cores = d["cores"].cast<int64_t>(),
          .sync_cycles = d["sync_cycles"].cast<int64_t>(),
          .array_share = d["array_share"].cast<double>(),
          .overlap_p = d["overlap_p"].cast<double>()};
}

TiledMachine read_tiled_machine(const py::dict& d) {
  return {.machine = read_machine(d["machine"]),
          .room = d["room"].cast<int64_t>(),
          .double_buffer = d["double_buffer"].cast<bool>(),
          .sums_room = d["sums_room"].cast<int64_t>(),
          .granule = d["granule"].cast<Extents>()};
}

TiledWork read_tiled_work(const py::dict& d) {
  TiledWork work{.products = d["products"].cast<bool>(),
                 .on_array = d["on_array"].cast<bool>(),
                 .walked = d["walked"].cast<bool>(),
                 .whole_rows = d["whole_rows"].cast<bool>(),
                 .sizes = d["sizes"].cast<Extents>(),
                 .taps = d["taps"].cast<int64_t>(),
                 .depthwise = d["depthwise"].cast<bool>(),
                 .element_bytes = d["element_bytes"].cast<int64_t>(),
                 .vector_rate = d["vector_rate"].cast<double>(),
                 .vector = read_vector(d["vector"]),
                 .operands = {}};
  using Row = std::tuple<int, int, int64_t, int64_t, bool, bool, bool>;
  for (const auto& [axes, inner, bytes, halo, write, here, inside] :
       d["operands"].cast<std::vector<Row>>()) {
    work.operands.push_back({axes, inner, bytes, halo, write, here, inside});
  }
  return work;
}

py::dict assessed(const TiledMachine& machine, const TiledWork& work, const Tiling& tiling) {
  const Assessed found = assess(machine, work, tiling);
  py::list operands;
  for (const TiledTraffic& one : found.operands) {
    operands.append(py::make_tuple(one.tile_bytes, one.row_bytes, one.transfers, one.moved_bytes));
  }
  py::dict out;
  out["tile"] = tiling.tile;
  out["n_before_m"] = tiling.n_before_m;
  out["resident"] = tiling.resident;
  out["array_cycles"] = found.array_cycles;
  out["vector_cycles"] = found.vector_cycles;
  out["cycles"] = found.cycles;
  out["least_cycles"] = found.least_cycles;
  out["moved_bytes"] = found.moved_bytes;
  out["tiles"] = found.tiles;
  out["bytes"] = found.bytes;
  out["operands"] = operands;
  return out;
}

py::dict assess_tiling(const py::dict& machine, const py::dict& work, const Extents& tile,
                       bool n_before_m, int resident) {
  return assessed(read_tiled_machine(machine), read_tiled_work(work), {tile, n_before_m, resident});
}

py::object best_tiling(const py::dict& machine, const py::dict& work) {
  const TiledMachine described = read_tiled_machine(machine);
  const TiledWork read = read_tiled_work(work);
  std::optional<Tiling> found;
  {
    const py::gil_scoped_release unlocked;
    found = choose_tiling(described, read);
  }
  if (!found) return py::none();
  return assessed(described, read, *found);
}

py::dict run(const py::dict& machine, const py::dict& work, size_t timeline, bool shortcut) {
  const Machine described = read_machine(machine);
  const Work read = read_work(work);
  Result found;
  {
    const py::gil_scoped_release unlocked;
    found = walk(described, read, timeline, shortcut);
  }
  py::list events;
  for (const Interval& one : found.timeline) {
    events.append(py::make_tuple(one.lane, one.core, one.start, one.end, one.busy, one.count));
  }
  py::dict out;
  out["ticks"] = found.ticks;
  out["causes"] = found.causes;
  out["dram_read"] = found.dram_read;
  out["dram_written"] = found.dram_written;
  out["sram_bytes"] = found.sram_bytes;
  out["tiles"] = found.tiles;
  out["copies"] = found.copies;
  out["array_ticks"] = found.array_ticks;
  out["vector_ticks"] = found.vector_ticks;
  out["events"] = found.events;
  out["hop_bytes"] = found.hop_bytes;
  out["walked"] = found.walked;
  out["timeline"] = events;
  return out;
}

// The runs of a prompt of `tokens`: the position of each, how many tokens it takes, and the chunk
// of its method (1: `decode`).
std::vector<std::array<int64_t, 3>> prompt_runs(int64_t max_context, int64_t prefill_chunk,
                                                std::vector<int64_t> larger_chunks, bool recurrent,
                                                int64_t tokens) {
  LanguageModelFacts facts;
  facts.max_context = max_context;
  facts.prefill_chunk = prefill_chunk;
  facts.larger_chunks = std::move(larger_chunks);
  if (recurrent) facts.recurrent = {""};
  std::vector<std::array<int64_t, 3>> runs;
  for (int64_t position = 0; position < std::min(tokens, max_context);) {
    const int64_t taken = next_run(facts, position, tokens - position);
    runs.push_back({position, taken, chunk_of(facts, taken)});
    position += taken;
  }
  return runs;
}

}  // namespace

void bind_simulate(py::module_& module) {
  module.def("array_cycles", &cycles, py::arg("array"), py::arg("m"), py::arg("n"), py::arg("k"),
             py::arg("repeats") = 1);
  module.def("assess_tiling", &assess_tiling, py::arg("machine"), py::arg("work"), py::arg("tile"),
             py::arg("n_before_m") = false, py::arg("resident") = -1);
  module.def("best_tiling", &best_tiling, py::arg("machine"), py::arg("work"));
  module.def("prompt_runs", &prompt_runs, py::arg("max_context"), py::arg("prefill_chunk"),
             py::arg("larger_chunks"), py::arg("recurrent"), py::arg("tokens"));
  module.def("walk_tiles", &run, py::arg("machine"), py::arg("work"), py::arg("timeline") = 0,
             py::arg("shortcut") = true);
}

}  // namespace npusim::python
