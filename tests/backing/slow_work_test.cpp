// What takes long is said once, while it lasts.
#include "firn/slow_work.h"

#include <gtest/gtest.h>

#include <atomic>

using namespace firn;
using namespace std::chrono_literals;

namespace {
class Lines {
 public:
  SlowWorks::Say say() {
    return [this](const std::string& line) {
      std::lock_guard lock(mutex_);
      lines_.push_back(line);
    };
  }
  std::vector<std::string> all() {
    std::lock_guard lock(mutex_);
    return lines_;
  }
  void wait_for(size_t count) {
    while (all().size() < count) std::this_thread::sleep_for(1ms);
  }

 private:
  std::mutex mutex_;
  std::vector<std::string> lines_;
};

SlowWork::Words words(const std::string& text) {
  return [text] { return text; };
}
}  // namespace

TEST(SlowWork, is_said_while_it_lasts_and_once) {
  Lines lines;
  SlowWorks works(20ms, lines.say());
  {
    SlowWork work(SlowWorks::Kind::layout, words("laying out /d"), works);
    lines.wait_for(1);  // without end, where nobody says it before the work is over
  }
  for (int i = 0; i < 3; ++i) {
    SlowWork again(SlowWorks::Kind::layout, words("laying out /d"), works);
    std::this_thread::sleep_for(25ms);
  }
  ASSERT_EQ(lines.all().size(), 1u);
  EXPECT_TRUE(lines.all()[0].starts_with("laying out /d takes long (0.0 s so far)"))
      << lines.all()[0];
}

TEST(SlowWork, each_kind_has_its_line) {
  Lines lines;
  SlowWorks works(1ms, lines.say());
  SlowWork one(SlowWorks::Kind::layout, words("a"), works);
  lines.wait_for(1);
  SlowWork other(SlowWorks::Kind::plan, words("b"), works);
  lines.wait_for(2);
}

TEST(SlowWork, what_is_quick_is_not_said) {
  Lines lines;
  {
    SlowWorks works(1h, lines.say());
    for (int i = 0; i < 1000; ++i) SlowWork(SlowWorks::Kind::plan, words("a"), works);
  }
  EXPECT_TRUE(lines.all().empty());
}

/// Many steps, none of which is long by itself, one behind the other.
TEST(SlowWork, a_little_again_and_again_is_much) {
  Lines lines;
  SlowWorks works(50ms, lines.say());
  const auto begin = std::chrono::steady_clock::now();
  while (lines.all().empty()) {
    SlowWork step(SlowWorks::Kind::layout, words("a step"), works);
    std::this_thread::sleep_for(2ms);
    ASSERT_LT(std::chrono::steady_clock::now() - begin, 60s);
  }
}

// The work may end because there is no memory: then there is none for its words either. Before the
// watcher has looked, as a rule, and after it has.
TEST(SlowWork, ends_where_there_is_no_memory_for_its_words) {
  std::atomic<unsigned> asked{0};
  const auto none = [&asked]() -> std::string {
    ++asked;
    asked.notify_all();
    throw std::bad_alloc();
  };
  SlowWorks works(0ms, [](const std::string&) {});
  { SlowWork work(SlowWorks::Kind::layout, none, works); }
  EXPECT_EQ(asked, 1u);
  SlowWork work(SlowWorks::Kind::plan, none, works);
  asked.wait(1);  // without end, where nobody says it before the work is over
}
