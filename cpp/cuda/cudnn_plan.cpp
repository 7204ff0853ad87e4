#include "cpp/cuda/cudnn_plan.h"

#include <algorithm>
#include <initializer_list>
#include <utility>
#include <vector>

namespace npusim::cuda {
namespace {

using namespace cudnn_abi;

constexpr int kModeA = 3;  // of the heuristics
enum NumericalNote : int {
  kTensorCore = 0,
  kNarrowedInputs = 1,
  kNarrowedSums = 2,
  kFft = 3,
  kNondeterministic = 4,
  kWinograd = 5,
};
constexpr int kCompiles = 0;  // a behavior note
constexpr int64_t kMostConfigurations = 32, kMostNotes = 16;

std::vector<CudnnDescriptor> configurations(const CudnnEntries& entries,
                                            const CudnnDescriptor& graph) {
  CudnnDescriptor heuristics(entries, kHeuristics);
  heuristics.set(kHeuristicsGraph, graph)
      .set(kHeuristicsMode, kHeuristicMode, 1, &kModeA)
      .finalize();
  std::vector<CudnnDescriptor> found;
  std::vector<CudnnEntries::Descriptor> handles;
  for (int64_t i = 0; i < kMostConfigurations; ++i) {
    handles.push_back(found.emplace_back(entries, kConfiguration).get());
  }
  int64_t count = 0;
  const bool whole = std::find(handles.begin(), handles.end(), nullptr) == handles.end();
  if (!whole || !heuristics.ok() ||
      entries.descriptor_get(heuristics.get(), kHeuristicsResults, kDescriptor, kMostConfigurations,
                             &count, handles.data()) != 0) {
    count = 0;
  }
  found.resize(static_cast<size_t>(std::clamp<int64_t>(count, 0, kMostConfigurations)));
  return found;
}

bool has_note(const CudnnEntries& entries, CudnnEntries::Descriptor engine, int attribute, int type,
              std::initializer_list<int> notes) {
  int found[kMostNotes] = {};
  int64_t count = 0;
  if (entries.descriptor_get(engine, attribute, type, kMostNotes, &count, found) != 0) return true;
  int* const end = found + std::clamp<int64_t>(count, 0, kMostNotes);
  return std::any_of(notes.begin(), notes.end(),
                     [&](int note) { return std::find(found, end, note) != end; });
}

// Sums in float32 that come out the same every time; of float32 no TF32; nothing to be compiled.
bool is_usable(const CudnnEntries& entries, CudnnEntries::Descriptor configuration,
               LibraryType type) {
  const CudnnDescriptor engine(entries, kEngine);
  CudnnEntries::Descriptor handle = engine.get();
  int64_t count = 0;
  if (handle == nullptr || entries.descriptor_get(configuration, kConfigurationEngine, kDescriptor,
                                                  1, &count, &handle) != 0) {
    return false;
  }
  const bool narrow =
      has_note(entries, handle, kNumericalNotes, kNumericalNote,
               {kNarrowedInputs, kNarrowedSums, kFft, kNondeterministic, kWinograd});
  const bool tf32 = type == LibraryType::kFloat32 &&
                    has_note(entries, handle, kNumericalNotes, kNumericalNote, {kTensorCore});
  return !narrow && !tf32 && !has_note(entries, handle, kBehaviorNotes, kBehaviorNote, {kCompiles});
}

}  // namespace

CudnnPlan find_plan(const Cudnn& cudnn, const CudnnDescriptor& graph, LibraryType type,
                    int64_t index) {
  if (!graph.ok()) return {};
  const CudnnEntries& entries = cudnn.library().entries();
  const CudnnEntries::Handle handle = cudnn.handle();
  for (CudnnDescriptor& configuration : configurations(entries, graph)) {
    if (!is_usable(entries, configuration.get(), type)) continue;
    CudnnDescriptor plan(entries, kPlan);
    plan.set(kPlanHandle, kHandle, 1, &handle).set(kPlanConfiguration, configuration).finalize();
    if (plan.ok() && index-- == 0) return {std::move(configuration), std::move(plan)};
  }
  return {};
}

std::optional<int64_t> workspace_of(const CudnnEntries& entries, const CudnnDescriptor& plan) {
  int64_t bytes = 0, count = 0;
  const auto status = entries.descriptor_get(plan.get(), kPlanWorkspace, kInt64, 1, &count, &bytes);
  if (status != 0 || bytes < 0) return std::nullopt;
  return bytes;
}

}  // namespace npusim::cuda
