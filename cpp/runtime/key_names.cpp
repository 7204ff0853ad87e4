#include "cpp/runtime/key_names.h"

#include <algorithm>

#include "cpp/runtime/weights.h"

namespace npusim {
namespace {

bool all_found(const std::vector<std::string>& keys, const TensorSource& source,
               const KeyNames& names) {
  return std::all_of(keys.begin(), keys.end(), [&](const std::string& key) {
    return key.starts_with(names.front().first) && source.find(renamed(key, names)) != nullptr;
  });
}

}  // namespace

std::string renamed(std::string_view key, const KeyNames& names) {
  const std::pair<std::string, std::string>* best = nullptr;
  for (const auto& pair : names) {
    const bool longer = best == nullptr || pair.first.size() > best->first.size();
    if (key.starts_with(pair.first) && longer) best = &pair;
  }
  if (best == nullptr) return std::string(key);
  return best->second + std::string(key.substr(best->first.size()));
}

KeyNames fitting_names(const std::vector<std::string>& missing, const TensorSource& source) {
  if (missing.empty()) return {};
  const std::string& first = missing.front();
  for (size_t dot = first.find('.'); dot != std::string::npos; dot = first.find('.', dot + 1)) {
    KeyNames names{{first.substr(0, dot + 1), ""}};
    if (all_found(missing, source, names)) return names;
  }
  for (const std::string_view name : source.names()) {
    if (name.size() <= first.size() + 1 || !name.ends_with("." + first)) continue;
    KeyNames names{{"", std::string(name.substr(0, name.size() - first.size()))}};
    if (all_found(missing, source, names)) return names;
  }
  return {};
}

}  // namespace npusim
