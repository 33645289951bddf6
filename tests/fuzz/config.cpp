// Words of PYTORCH_CUDA_ALLOC_CONF and of the environment. An input: the text of the variable, and
// below "== environment" lines KNOB=VALUE.
//
// Beyond no crash: the words are split as a second splitter here does it, torch's words and Firn's
// stay what they were; what is refused is refused on one line that says where; what was taken is
// within its limits, and shown and given back it is taken as the same.
#include "allocator/runtime/config.h"

#include <vector>

#include "tests/fuzz/fuzz.h"

using namespace firn;
using fuzz::check_words;

namespace {

std::string_view trimmed(std::string_view word) {
  while (!word.empty() && std::strchr(" \t\r\n", word.front()) && word.front())
    word.remove_prefix(1);
  while (!word.empty() && std::strchr(" \t\r\n", word.back()) && word.back())
    word.remove_suffix(1);
  return word;
}

/// At commas that no bracket is open around.
std::vector<std::string> words_of(std::string_view conf) {
  std::vector<std::string> words;
  std::string word;
  size_t open = 0;
  const auto end = [&] {
    if (const std::string_view whole = trimmed(word); !whole.empty()) words.emplace_back(whole);
    word.clear();
  };
  for (const char c : conf) {
    if (c == ',' && open == 0) {
      end();
      continue;
    }
    if (c == '[') ++open;
    if (c == ']' && open > 0) --open;
    word += c;
  }
  end();
  return words;
}

void check_split(std::string_view conf, const ConfWords& split) {
  bool wanted = false;
  std::vector<std::string> firn, rest;
  for (const std::string& word : words_of(conf)) {
    const size_t colon = std::min(word.find(':'), word.size());
    const std::string_view key = trimmed(std::string_view(word).substr(0, colon));
    const std::string_view value =
        trimmed(std::string_view(word).substr(std::min(colon + 1, word.size())));
    if (key == "backend" && value == "firn" && colon < word.size())
      wanted = true;
    else
      (key.starts_with("firn_") ? firn : rest).push_back(word);
  }
  FUZZ_CHECK(wanted == split.wanted, "backend:firn");
  FUZZ_CHECK(words_of(split.firn) == firn, "firn's words became %s", split.firn.c_str());
  FUZZ_CHECK(words_of(split.rest) == rest, "torch's words became %s", split.rest.c_str());
  const ConfWords again = split_conf(split.rest);
  FUZZ_CHECK(!again.wanted && again.firn.empty() && again.rest == split.rest, "%s became %s",
             split.rest.c_str(), again.rest.c_str());
}

void check_limits(const Config& config) {
  FUZZ_CHECK(config.depth >= 1 && config.depth <= 1024, "depth %u", config.depth);
  FUZZ_CHECK(config.piece_bytes >= 64u << 10 && config.piece_bytes <= 1u << 30 &&
                 config.piece_bytes % 4096 == 0,
             "piece %llu", static_cast<unsigned long long>(config.piece_bytes));
  FUZZ_CHECK(config.watch_fraction >= 0 && config.watch_fraction <= 1, "watch");
  FUZZ_CHECK(config.spare_fraction >= 0 && config.spare_fraction <= 1, "spare");
  FUZZ_CHECK(config.looks >= 1, "looks");
  for (const std::string& dir : config.dirs)
    FUZZ_CHECK(dir.starts_with('/'), "directory %s", dir.c_str());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const std::vector<Knob> all = [] {
    std::vector<Knob> both = knobs();
    for (const Knob& knob : test_knobs()) both.push_back(knob);
    return both;
  }();
  const auto texts = fuzz::texts_of(data, size);
  const std::string& conf = texts.at("");
  const ConfWords split = split_conf(conf);
  check_split(conf, split);

  for (const Knob& knob : all) ::unsetenv(environment_name(knob.name).c_str());
  if (const auto lines = texts.find("environment"); lines != texts.end())
    for (std::string_view left = lines->second; !left.empty();) {
      const std::string_view line = left.substr(0, left.find('\n'));
      left.remove_prefix(std::min(line.size() + 1, left.size()));
      const size_t equals = std::min(line.find('='), line.size());
      for (const Knob& knob : all)
        if (line.substr(0, equals) == knob.name)
          ::setenv(environment_name(knob.name).c_str(),
                   std::string(line.substr(std::min(equals + 1, line.size()))).c_str(), 1);
    }

  Result<Config> config = parse_config(split.firn);
  if (!config) {
    const std::string& text = config.error().text;
    check_words(text);
    FUZZ_CHECK(text.starts_with("PYTORCH_CUDA_ALLOC_CONF: ") || text.starts_with("FIRN_"),
               "it does not say where: %s", text.c_str());
    return 0;
  }
  check_limits(*config);
  Config again;
  for (const Knob& knob : all) {
    const std::string shown = show_knob(*config, knob.name);
    if (shown.empty()) continue;
    Result<void> taken = set_knob(again, knob.name, shown, knob.name);
    FUZZ_CHECK(taken, "%s shown as %s: %s", knob.name, shown.c_str(),
               describe(taken.error()).c_str());
  }
  for (const Knob& knob : all)
    FUZZ_CHECK(show_knob(again, knob.name) == show_knob(*config, knob.name), "%s: %s became %s",
               knob.name, show_knob(*config, knob.name).c_str(),
               show_knob(again, knob.name).c_str());
  return 0;
}
