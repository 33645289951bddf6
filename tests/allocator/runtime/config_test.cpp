// The knob table and the words it is read from. No locks; changes this process's environment.
#include "allocator/runtime/config.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <random>

namespace firn {
namespace {

// Seeds: FIRN_SEED replays one; a failure prints the command.
uint64_t first_seed() {
  const char* word = std::getenv("FIRN_SEED");
  return word == nullptr ? 1 : std::strtoull(word, nullptr, 10);
}
uint64_t last_seed(uint64_t count) {
  return std::getenv("FIRN_SEED") == nullptr ? count : first_seed();
}
std::string replay(uint64_t seed) {
  return "replay: FIRN_SEED=" + std::to_string(seed) + " config_test --gtest_filter=" +
         testing::UnitTest::GetInstance()->current_test_info()->test_suite_name() + "." +
         testing::UnitTest::GetInstance()->current_test_info()->name();
}

std::vector<Knob> every_knob() {
  std::vector<Knob> all = knobs();
  for (const Knob& knob : test_knobs()) all.push_back(knob);
  return all;
}

// Clears every FIRN_ knob for a test, so that the caller's environment does not decide it.
class ConfigTest : public testing::Test {
 protected:
  void SetUp() override { clear(); }
  void TearDown() override { clear(); }
  static void clear() {
    for (const Knob& knob : every_knob()) ::unsetenv(environment_name(knob.name).c_str());
  }
  static std::string trouble(std::string_view conf) {
    Result<Config> config = parse_config(conf);
    return config ? "" : config.error().text;
  }
};

TEST_F(ConfigTest, SizesAreTaken) {
  const std::pair<const char*, uint64_t> table[] = {{"1", 1},
                                                    {"4096", 4096},
                                                    {"20GiB", 20ull << 30},
                                                    {"512MiB", 512ull << 20},
                                                    {"1.5GB", 1'500'000'000},
                                                    {"1.5GiB", 3ull << 29},
                                                    {"0.5KiB", 512},
                                                    {"7B", 7},
                                                    {"2TiB", 2ull << 40},
                                                    {"3TB", 3'000'000'000'000},
                                                    {"10KB", 10'000},
                                                    {"10MB", 10'000'000},
                                                    {"18446744073709551615", UINT64_MAX},
                                                    {"16777215TiB", 16777215ull << 40},
                                                    {"0.000000000001TiB", 1},
                                                    {"8G", 8ull << 30},
                                                    {"512m", 512ull << 20},
                                                    {"3k", 3072},
                                                    {"1T", 1ull << 40},
                                                    {"8gib", 8ull << 30},
                                                    {"2gb", 2'000'000'000},
                                                    {"1 GiB", 1ull << 30},
                                                    {"007", 7}};
  for (const auto& [word, bytes] : table) {
    Result<uint64_t> result = parse_size(word);
    ASSERT_TRUE(result) << word << ": " << result.error().text;
    EXPECT_EQ(*result, bytes) << word;
  }
}

TEST_F(ConfigTest, NonsenseSizesAreRefusedByName) {
  for (const char* word : {"",
                           "0",
                           "0GiB",
                           "-1",
                           "-1GiB",
                           "10XB",
                           "GiB",
                           "1  GiB",
                           "1 ",
                           " 1GiB",
                           "1GiB ",
                           "1e9",
                           "0x10",
                           "1.GiB",
                           ".5GiB",
                           "1..5GiB",
                           "1.5.5",
                           "1,5GiB",
                           "+1",
                           "1Gi",
                           "1g b",
                           "nan",
                           "inf",
                           "18446744073709551616",
                           "16777216TiB",
                           "99999999999999999999999999",
                           "0.1B",
                           "1GiB\n",
                           "\n"}) {
    Result<uint64_t> result = parse_size(word);
    ASSERT_FALSE(result) << word << " gave " << *result;
    EXPECT_EQ(result.error().code, Code::invalid_argument);
    EXPECT_NE(result.error().text.find(quote_word(word)), std::string::npos) << result.error().text;
    EXPECT_EQ(result.error().text.find('\n'), std::string::npos) << result.error().text;
  }
}

TEST_F(ConfigTest, SizesAreShownAsTheyAreWritten) {
  EXPECT_EQ(format_size(20ull << 30), "20GiB");
  EXPECT_EQ(format_size(1536ull << 20), "1.50GiB");
  EXPECT_EQ(format_size(4096), "4KiB");
  EXPECT_EQ(format_size(1023), "1023");
  EXPECT_EQ(format_size(1'500'000'000), "1.40GiB");
}

TEST_F(ConfigTest, SizesRoundTrip) {
  for (uint64_t seed = first_seed(); seed <= last_seed(20'000); ++seed) {
    std::mt19937_64 random(seed);
    const uint64_t bytes = std::max<uint64_t>(1, random() >> (random() % 64));
    Result<uint64_t> plain = parse_size(std::to_string(bytes));
    ASSERT_TRUE(plain) << replay(seed);
    ASSERT_EQ(*plain, bytes) << replay(seed);
    Result<uint64_t> shown = parse_size(format_size(bytes));
    ASSERT_TRUE(shown) << bytes << " " << format_size(bytes) << " " << replay(seed);
    const double apart = std::abs(static_cast<double>(*shown) - static_cast<double>(bytes));
    ASSERT_LE(apart, static_cast<double>(bytes) * 0.0051 + 1) << replay(seed);
  }
}

TEST_F(ConfigTest, DefaultsHoldWithoutWords) {
  Result<Config> config = parse_config("");
  ASSERT_TRUE(config) << config.error().text;
  EXPECT_EQ(config->budget_bytes, 0u);
  EXPECT_TRUE(config->dirs.empty());
  EXPECT_EQ(config->policy, "lifetime");
  EXPECT_EQ(config->store, "automatic");
  EXPECT_EQ(config->piece_bytes, 8u << 20);
  EXPECT_EQ(config->depth, 32u);
  EXPECT_FALSE(config->adversarial);
}

// What the table says is the default is what Config holds.
TEST_F(ConfigTest, DefaultsInTheTableAreConfigs) {
  const Config config;
  for (const Knob& knob : every_knob()) {
    const std::string shown = show_knob(config, knob.name);
    if (shown.empty()) continue;
    EXPECT_EQ(shown, knob.fallback) << knob.name;
  }
}

// Users look at knobs(); what only tests want has a name that says so, and is not among them.
TEST_F(ConfigTest, WhatOnlyTestsWantIsApart) {
  for (const Knob& knob : knobs())
    EXPECT_FALSE(std::string_view(knob.name).starts_with("test_")) << knob.name;
  for (const Knob& knob : test_knobs()) {
    EXPECT_TRUE(std::string_view(knob.name).starts_with("test_")) << knob.name;
    EXPECT_EQ(trouble("firn_bugdet:1GiB").find(knob.name), std::string::npos);
    const std::string was = std::string(knob.name).substr(std::string("test_").size());
    EXPECT_NE(trouble("firn_" + was + ":1").find(std::string("did you mean firn_") + knob.name),
              std::string::npos);
  }
}

TEST_F(ConfigTest, EveryKnobIsReadFromWordsAndFromTheEnvironment) {
  const std::pair<const char*, const char*> table[] = {
      {"budget", "20GiB"},     {"dir", "/nvme0;/nvme1"}, {"host", "8GiB"},
      {"policy", "age"},       {"store", "threads"},     {"store_size", "1TiB"},
      {"depth", "16"},         {"piece", "4MiB"},        {"watch", "0.25"},
      {"spare", "0.5"},        {"spread", "all"},       {"places", "0"},
      {"remake", "0"},         {"relay", "8"},
      {"stats", "/x/%p.json"}, {"trace", "t.csv"},       {"driver", "/x/libcuda.so.1"},
      {"encrypt", "1"},        {"looks", "all"},         {"copy_gate", "0"},
      {"io_patience", "5s"},   {"free_waits", "1"},      {"fallback", "native"},
      {"verify", "host"},      {"metrics", "9464"}, {"memory_info", "40GiB"},  {"oom_page", "/x/oom.html"},
      {"test_adversarial", "1"},        {"test_allow_tmpfs", "1"}, {"test_guard", "1"},
      {"test_layouts", "0"},            {"test_poison", "1"},      {"test_store_read", "3GiB/s"},
      {"test_store_write", "2GiB/s"},   {"test_store_latency", "20us"}};
  ASSERT_EQ(std::size(table), every_knob().size()) << "a knob is missing from this test";
  for (const auto& [name, value] : table) {
    clear();
    const std::string word = std::string("firn_") + name + ":" + value;
    Result<Config> by_word = parse_config(word);
    ASSERT_TRUE(by_word) << by_word.error().text;
    EXPECT_EQ(show_knob(*by_word, name), value);
    EXPECT_NE(show_knob(Config(), name), value) << "the test's value is the default";
    ::setenv(environment_name(name).c_str(), value, 1);
    Result<Config> by_environment = parse_config("");
    ASSERT_TRUE(by_environment) << by_environment.error().text;
    EXPECT_EQ(show_knob(*by_environment, name), value);
  }
}

TEST_F(ConfigTest, WordsOverrideTheEnvironmentAndLaterWordsEarlierOnes) {
  ::setenv("FIRN_BUDGET", "1GiB", 1);
  ::setenv("FIRN_HOST", "", 1);  // empty counts as unset
  Result<Config> config = parse_config("firn_budget:2GiB, firn_budget : 3GiB,firn_dir:/a;/b");
  ASSERT_TRUE(config) << config.error().text;
  EXPECT_EQ(config->budget_bytes, 3ull << 30);
  EXPECT_EQ(config->dirs, (std::vector<std::string>{"/a", "/b"}));
}

TEST_F(ConfigTest, BadWordsAreRefusedOnOneLineThatNamesThem) {
  const std::pair<const char*, const char*> table[] = {
      {"firn_budgte:1GiB", "did you mean firn_budget"},
      {"firn_nothing:1", "known: firn_budget"},
      {"firn_budget", "the value is missing"},
      {"firn_budget:", "is empty"},
      {"firn_budget:0", "0 bytes"},
      {"firn_budget:-1", "negative"},
      {"firn_budget:10XB", "unknown unit \"XB\""},
      {"firn_budget:1", "less than 2MiB"},
      {"firn_dir:spill", "relative"},
      {"firn_dir:/a;;/b", "empty"},
      {"firn_dir:", "empty"},
      {"firn_dir:/a;/a", "twice"},
      {"firn_host:lots", "not a size"},
      {"firn_host:15MiB", "less than 16MiB"},
      {"firn_policy:lru", "age, lifetime"},
      {"firn_store:aio", "io_uring"},
      {"firn_watch:2", "from 0 to 1"},
      {"firn_watch:nan", "from 0 to 1"},
      {"firn_spare:-1", "from 0 to 1"},
      {"firn_watch:half", "from 0 to 1"},
      {"firn_relay:many", "0 to 65536"},
      {"firn_relay:1.5", "0 to 65536"},
      {"firn_relay:65537", "0 to 65536"},
      {"firn_depth:0", "1 to 1024"},
      {"firn_depth:1.5", "1 to 1024"},
      {"firn_depth:-1", "1 to 1024"},
      {"firn_piece:5000B", "less than 64KiB"},
      {"firn_piece:2GiB", "more than 1GiB"},
      {"firn_piece:100001B", "multiple"},
      {"firn_test_allow_tmpfs:yes", "true"},
      {"firn_stats:", "empty"},
      {"firn_metrics:", "empty"},
      {"firn_metrics:0", "1 to 65535"},
      {"firn_metrics:65536", "1 to 65535"},
      {"firn_metrics:99999999999999999999", "1 to 65535"},
      {"max_split_size_mb:64", "Firn's keys begin with firn_"}};
  for (const auto& [word, says] : table) {
    const std::string text = trouble(word);
    EXPECT_NE(text.find(says), std::string::npos) << word << ": " << text;
    EXPECT_NE(text.find(std::string(word).substr(0, std::string(word).find(':'))),
              std::string::npos)
        << text;
    EXPECT_NE(text.find("PYTORCH_CUDA_ALLOC_CONF"), std::string::npos) << text;
  }
  ::setenv("FIRN_BUDGET", "10XB", 1);
  EXPECT_NE(trouble("").find("FIRN_BUDGET: \"10XB\""), std::string::npos) << trouble("");
}

TEST_F(ConfigTest, ConfIsSplitIntoFirnsWordsAndTorchs) {
  struct Row {
    const char *conf, *firn, *rest;
    bool wanted;
  };
  const Row table[] = {
      {"", "", "", false},
      {"backend:firn", "", "", true},
      {" backend : firn ", "", "", true},
      {"backend:firn,max_split_size_mb:64,firn_budget:1GiB", "firn_budget:1GiB",
       "max_split_size_mb:64", true},
      {"backend:native,firn_budget:1GiB", "firn_budget:1GiB", "backend:native", false},
      {"backend:firnly", "", "backend:firnly", false},
      {"roundup_power2_divisions:[256:1,512:2,>:8],backend:firn", "",
       "roundup_power2_divisions:[256:1,512:2,>:8]", true},
      {"a],firn_budget:1GiB,b:[1,firn_budget:2GiB]", "firn_budget:1GiB",
       "a],b:[1,firn_budget:2GiB]", false},
      {"firn_dir:/a;/b,firn_host:1GiB,,", "firn_dir:/a;/b,firn_host:1GiB", "", false},
      {"expandable_segments:True,backend:firn,garbage", "", "expandable_segments:True,garbage",
       true}};
  for (const Row& row : table) {
    const ConfWords words = split_conf(row.conf);
    EXPECT_EQ(words.firn, row.firn) << row.conf;
    EXPECT_EQ(words.rest, row.rest) << row.conf;
    EXPECT_EQ(words.wanted, row.wanted) << row.conf;
  }
}

// Any bytes whatever: taken, or refused on one line; split never loses a word.
TEST_F(ConfigTest, FuzzedWordsNeverBreakTheReader) {
  const std::string_view pieces[] = {
      "firn_", "budget", "dir",  "host", "watch", "depth", "piece",        "policy", "age",
      ":",     ":",      ":",    ",",    ",",     ";",     "/a",           "/b",     "1",
      "9",     ".",      "GiB",  "MiB",  "XB",    "-",     "backend:firn", " ",      "[",
      "]",     "\n",     "\x01", "\xff", "0",     "nan",   "stats"};
  for (uint64_t seed = first_seed(); seed <= last_seed(20'000); ++seed) {
    std::mt19937_64 random(seed);
    std::string conf;
    for (size_t n = random() % 16; n > 0; --n) conf += pieces[random() % std::size(pieces)];
    const ConfWords words = split_conf(conf);
    const ConfWords again = split_conf(words.firn);
    if (conf.find_first_of("[]") == std::string::npos) {
      ASSERT_EQ(again.firn, words.firn) << conf << " " << replay(seed);
      ASSERT_TRUE(again.rest.empty()) << conf << " " << replay(seed);
    }
    for (const std::string& text : {trouble(conf), trouble(words.firn)}) {
      ASSERT_LT(text.size(), 500u) << replay(seed);
      ASSERT_TRUE(std::none_of(text.begin(), text.end(),
                               [](char c) { return static_cast<unsigned char>(c) < 0x20; }))
          << text << " " << replay(seed);
    }
  }
}

// A configuration shown and read again is the same configuration.
TEST_F(ConfigTest, ShownKnobsRoundTrip) {
  for (uint64_t seed = first_seed(); seed <= last_seed(2'000); ++seed) {
    std::mt19937_64 random(seed);
    std::string conf;
    const auto add = [&](const char* name, const std::string& value) {
      if (random() % 2 == 0) return;
      conf.append(conf.empty() ? "firn_" : ",firn_").append(name).append(":").append(value);
    };
    add("budget", std::to_string((1 + random() % 4096) * 2) + "MiB");
    add("host", std::to_string(1 + random() % 100) + "GiB");
    add("dir", "/n" + std::to_string(random() % 9) + ";/m");
    add("policy", random() % 2 == 0 ? "age" : "lifetime");
    add("watch", "0." + std::to_string(random() % 1000));
    add("depth", std::to_string(1 + random() % 1024));
    add("piece", std::to_string(1 + random() % 64) + "MiB");
    Result<Config> config = parse_config(conf);
    ASSERT_TRUE(config) << config.error().text << " " << replay(seed);
    Config again;
    for (const Knob& knob : every_knob()) {
      const std::string shown = show_knob(*config, knob.name);
      if (shown.empty()) continue;
      Result<void> done = set_knob(again, knob.name, shown, knob.name);
      ASSERT_TRUE(done) << done.error().text << " " << replay(seed);
    }
    for (const Knob& knob : every_knob())
      ASSERT_EQ(show_knob(again, knob.name), show_knob(*config, knob.name)) << replay(seed);
  }
}

}  // namespace
}  // namespace firn
