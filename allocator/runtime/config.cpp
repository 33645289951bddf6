// Reads knobs from PYTORCH_CUDA_ALLOC_CONF, the environment and options; knobs.cpp defines them.
// Owns: nothing. Locks: none (reads the environment; called at start).
#include "allocator/runtime/config.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "allocator/runtime/knobs.h"

namespace firn {
namespace {

size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t above = row[j];
      row[j] = std::min({above + 1, row[j - 1] + 1, diagonal + (a[i - 1] != b[j - 1])});
      diagonal = above;
    }
  }
  return row.back();
}

// "; did you mean firn_budget?", or every name when nothing is near.
std::string suggest(std::string_view name) {
  if (const KnobBinding* moved = find_knob("test_" + std::string(name)))
    return std::string("; did you mean firn_") + moved->knob.name + "?";
  if (name.size() <= 32) {
    for (const KnobBinding& binding : knob_bindings())
      if (edit_distance(name, binding.knob.name) <= 2)
        return std::string("; did you mean firn_") + binding.knob.name + "?";
  }
  std::string text = "; known:";
  for (const KnobBinding& binding : knob_bindings())
    text.append(" firn_").append(binding.knob.name);
  return text;
}

std::string_view trim(std::string_view word) {
  constexpr std::string_view blanks = " \t\r\n";
  const size_t first = word.find_first_not_of(blanks);
  if (first == std::string_view::npos) return {};
  return word.substr(first, word.find_last_not_of(blanks) - first + 1);
}

// torch's words may hold commas in brackets: roundup_power2_divisions:[256:1,512:2].
std::vector<std::string_view> split_words(std::string_view conf) {
  std::vector<std::string_view> words;
  int depth = 0;
  size_t begin = 0;
  for (size_t i = 0; i <= conf.size(); ++i) {
    if (i < conf.size() && conf[i] == '[') ++depth;
    if (i < conf.size() && conf[i] == ']' && depth > 0) --depth;
    if (i < conf.size() && (conf[i] != ',' || depth > 0)) continue;
    if (const std::string_view word = trim(conf.substr(begin, i - begin)); !word.empty())
      words.push_back(word);
    begin = i + 1;
  }
  return words;
}

constexpr std::string_view prefix = "firn_";

}  // namespace

bool is_port(std::string_view word) {
  return !word.empty() && word.find_first_not_of("0123456789") == std::string_view::npos;
}

std::vector<Knob> knobs() {
  std::vector<Knob> all;
  for (const KnobBinding& binding : knob_bindings()) all.push_back(binding.knob);
  return all;
}

std::vector<Knob> test_knobs() {
  std::vector<Knob> all;
  for (const KnobBinding& binding : test_knob_bindings()) all.push_back(binding.knob);
  return all;
}

std::string environment_name(std::string_view knob) {
  std::string name = "FIRN_";
  for (const char c : knob) name += static_cast<char>(c >= 'a' && c <= 'z' ? c - 'a' + 'A' : c);
  return name;
}

Result<void> set_knob(Config& config, std::string_view name, std::string_view value,
                      std::string_view where) {
  const KnobBinding* binding = find_knob(name);
  std::string trouble =
      binding == nullptr ? "unknown key" + suggest(name) : binding->set(config, value);
  if (trouble.empty()) return {};
  return invalid(std::string(where) + ": " + trouble);
}

std::string show_knob(const Config& config, std::string_view name) {
  const KnobBinding* binding = find_knob(name);
  if (binding == nullptr) {
    std::fprintf(stderr, "firn: show_knob: no knob %s\n", std::string(name).c_str());
    std::abort();
  }
  return binding->show(config);
}

ConfWords split_conf(std::string_view conf) {
  ConfWords words;
  for (const std::string_view word : split_words(conf)) {
    const size_t colon = word.find(':');
    const std::string_view key = trim(word.substr(0, colon));
    const std::string_view value =
        colon == std::string_view::npos ? std::string_view() : trim(word.substr(colon + 1));
    if (key == "backend" && value == "firn") {
      words.wanted = true;
      continue;
    }
    std::string& to = key.starts_with(prefix) ? words.firn : words.rest;
    to.append(to.empty() ? "" : ",").append(word);
  }
  return words;
}

Result<Config> parse_config(std::string_view conf) {
  Config config;
  for (const auto bindings : {knob_bindings(), test_knob_bindings()})
    for (const KnobBinding& binding : bindings) {
      const std::string name = environment_name(binding.knob.name);
      const char* value = ::secure_getenv(name.c_str());
      if (value == nullptr || *value == '\0') continue;
      if (Result<void> done = set_knob(config, binding.knob.name, value, name); !done)
        return done.error();
    }
  for (const std::string_view word : split_words(conf)) {
    const size_t colon = word.find(':');
    const std::string_view key = trim(word.substr(0, colon));
    const std::string where = "PYTORCH_CUDA_ALLOC_CONF: " + quote_word(key);
    if (!key.starts_with(prefix))
      return invalid(where + ": Firn's keys begin with firn_");
    if (colon == std::string_view::npos)
      return invalid(where + ": the value is missing; write key:value");
    Result<void> done =
        set_knob(config, key.substr(prefix.size()), trim(word.substr(colon + 1)), where);
    if (!done) return done.error();
  }
  return config;
}

}  // namespace firn
