// Errors on demand.
#include "faults.h"

#include <cstdlib>

namespace firn::software {

void Faults::fail_at(const std::string& entry, uint64_t nth, CUresult error) {
  if (nth == 0) {
    std::erase_if(rules_, [&](const Rule& rule) { return rule.entry == entry; });
    return;
  }
  rules_.push_back({.entry = entry, .countdown = nth, .error = error});
}

void Faults::fail_from(const std::string& entry, uint64_t nth, CUresult error) {
  rules_.push_back({.entry = entry, .countdown = nth, .lasting = true, .error = error});
}

void Faults::fail_rate(const std::string& entry, double rate, uint64_t seed, CUresult error) {
  std::erase_if(rules_, [&](const Rule& rule) { return rule.entry == entry && !rule.countdown; });
  if (rate > 0)
    rules_.push_back({.entry = entry, .rate = rate, .random = seed, .error = error});
}

namespace {
double draw(uint64_t& state) {  // splitmix64
  uint64_t z = (state += 0x9e3779b97f4a7c15u);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return static_cast<double>((z ^ (z >> 31)) >> 11) * 0x1p-53;
}
}  // namespace

CUresult Faults::next(const char* entry) {
  ++calls_;
  CUresult answer = CUDA_SUCCESS;
  for (size_t i = 0; i < rules_.size();) {
    Rule& rule = rules_[i];
    bool spent = false;
    if (rule.entry == "*" || rule.entry == entry) {
      if (rule.countdown) {
        if (rule.countdown == 1) answer = rule.error;
        spent = rule.countdown == 1 && !rule.lasting;
        if (rule.countdown > 1) --rule.countdown;
      } else if (draw(rule.random) < rule.rate) {
        answer = rule.error;
      }
    }
    if (spent)
      rules_.erase(rules_.begin() + static_cast<std::ptrdiff_t>(i));
    else
      ++i;
  }
  return answer;
}

bool Faults::parse(const std::string& words) {
  for (size_t at = 0; at < words.size();) {
    size_t end = words.find(',', at);
    if (end == std::string::npos) end = words.size();
    const std::string word = words.substr(at, end - at);
    const size_t first = word.find(':');
    const size_t second = first == std::string::npos ? first : word.find(':', first + 1);
    if (first == 0 || second == std::string::npos) return false;
    char* stop = nullptr;
    const uint64_t nth = std::strtoull(word.c_str() + first + 1, &stop, 10);
    const bool lasting = *stop == '+';
    if (stop + lasting != word.c_str() + second || nth == 0) return false;
    const int error = static_cast<int>(std::strtol(word.c_str() + second + 1, &stop, 10));
    if (*stop || stop == word.c_str() + second + 1 || error <= 0 || error > 999) return false;
    if (lasting)
      fail_from(word.substr(0, first), nth, static_cast<CUresult>(error));
    else
      fail_at(word.substr(0, first), nth, static_cast<CUresult>(error));
    at = end + 1;
  }
  return true;
}

}  // namespace firn::software
