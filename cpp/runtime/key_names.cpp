#include "cpp/runtime/key_names.h"

#include <algorithm>

#include <unordered_set>

namespace npusim {
namespace {

using Keys = std::unordered_set<std::string_view>;

bool all_found(const std::vector<std::string>& keys, const Keys& present, const KeyNames& names) {
  return std::all_of(keys.begin(), keys.end(), [&](const std::string& key) {
    return key.starts_with(names.front().first) && present.contains(renamed(key, names));
  });
}

KeyNames fitting_names(const std::vector<std::string>& missing,
                       const std::vector<std::string_view>& names_present) {
  const Keys present(names_present.begin(), names_present.end());
  const std::string& first = missing.front();
  for (size_t dot = first.find('.'); dot != std::string::npos; dot = first.find('.', dot + 1)) {
    KeyNames names{{first.substr(0, dot + 1), ""}};
    if (all_found(missing, present, names)) return names;
  }
  for (const std::string_view name : names_present) {
    if (name.size() <= first.size() + 1 || !name.ends_with("." + first)) continue;
    KeyNames names{{"", std::string(name.substr(0, name.size() - first.size()))}};
    if (all_found(missing, present, names)) return names;
  }
  return {};
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

std::string renaming_hint(const std::vector<std::string>& missing,
                          const std::vector<std::string_view>& present) {
  if (missing.empty()) return "";
  const KeyNames names = fitting_names(missing, present);
  if (names.empty()) return "";
  const auto& [from, to] = names.front();
  return "The checkpoint has every missing tensor under another name: '" +
         renamed(missing.front(), names) + "' for '" + missing.front() +
         "'. Load it as npusim.Checkpoint(..., rename={\"" + from + "\": \"" + to +
         "\"}), on the command line with --rename " + from + "=" + to + ".";
}

}  // namespace npusim
