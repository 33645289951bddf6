// The page about refused memory: what it says adds up, whatever words it is given.
#include "allocator/runtime/oom_page.h"

#include <gtest/gtest.h>
#include <fstream>
#include <sstream>

#include "tests/hand_clock.h"
#include "tests/temp_dir.h"

namespace firn {
namespace {

constexpr uint64_t MiB = 1u << 20;

OutOfMemoryThen example() {
  OutOfMemoryThen then;
  then.command = "python train.py --name \"<b>&\"";
  then.process = 7;
  then.number = 3;
  then.words = "32MiB cannot be had <here> & now";
  DeviceThen device;
  device.stats.budget_bytes = 256 * MiB;
  device.stats.device_bytes = 240 * MiB;
  device.stats.gap_bytes = 10 * MiB;
  device.stats.pinned = {{"held by operators that are running", 100 * MiB},
                         {"not yet seen in an operator", 50 * MiB}};
  device.stats.notices = {"thrash: 75 % of the last 2 s"};
  BlockInfo block;
  block.base = reinterpret_cast<void*>(0x7000000000);
  block.bytes = block.requested_bytes = 48 * MiB;
  block.live = true;
  block.state = "resident";
  device.blocks.push_back(block);
  block.bytes = block.requested_bytes = 2 * MiB;
  block.stays = "not yet seen in an operator";
  device.blocks.push_back(block);
  block.small = true;
  device.blocks.push_back(block);
  then.devices.push_back(device);
  return then;
}

size_t count(const std::string& text, std::string_view word) {
  size_t found = 0;
  for (size_t at = 0; (at = text.find(word, at)) != std::string::npos; at += word.size()) ++found;
  return found;
}

TEST(OomPage, names_the_program_the_words_and_each_part_of_the_budget) {
  const std::string page = oom_page(example());
  for (const char* words :
       {"python train.py --name &quot;&lt;b>&amp;&quot;", "process 7, ", "refusal 3",
        "32MiB cannot be had &lt;here> &amp; now", "GPU 0: 240MiB of a budget of 256MiB held",
        "stays: held by operators that are running", "100MiB", "50MiB", "80MiB", "10MiB", "16MiB",
        "thrash: 75 %", "2 blocks of 1 MiB and more"})
    EXPECT_NE(page.find(words), std::string::npos) << words << "\n" << page;
  EXPECT_EQ(page.find("<b>"), std::string::npos);
  // Those that stay come first, however small.
  EXPECT_LT(page.find("<tr><td>not yet seen in an operator</td>"), page.find("48MiB"));
  for (const char* element : {"div", "section", "table", "p", "body", "html"})
    EXPECT_EQ(count(page, std::string("<") + element + ">") +
                  count(page, std::string("<") + element + " "),
              count(page, std::string("</") + element + ">"))
        << element;
}

TEST(OomPage, figures_that_do_not_add_up_wrap_nowhere) {
  OutOfMemoryThen then = example();
  EngineStats& s = then.devices[0].stats;
  s.device_bytes = 8 * MiB;  // less than what stays: the figures are of two moments
  s.budget_bytes = 4 * MiB;
  const std::string page = oom_page(then);
  EXPECT_EQ(page.find("TiB"), std::string::npos) << page;
  then.devices.clear();
  EXPECT_NE(oom_page(then).find("</html>"), std::string::npos);
}

TEST(OomPage, many_blocks_are_cut_and_it_says_so) {
  OutOfMemoryThen then = example();
  auto& blocks = then.devices[0].blocks;
  blocks.assign(1'000, blocks.front());
  const std::string page = oom_page(then);
  EXPECT_NE(page.find("1000 blocks of 1 MiB and more, the first 300"), std::string::npos);
  EXPECT_EQ(count(page, "resident"), 300u);
}

TEST(OomPages, of_many_refusals_a_few_are_written) {
  const test::TempDir folder;
  const std::string path = folder.path() + "/page.html";
  test::HandClock clock;
  OomPages pages(clock);
  int asked = 0;
  const auto refuse = [&](const std::string& words) {
    pages.write(path, words, [&] {
      ++asked;
      clock.now += 2'000'000;
      return std::vector<DeviceThen>{};
    });
  };
  for (int i = 0; i < 200; ++i) refuse("refused " + std::to_string(i));
  EXPECT_EQ(asked, 1) << "the pause after one is twenty times as long";
  clock.now += 40'000'000;
  refuse("refused at last");
  EXPECT_EQ(asked, 2);
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  EXPECT_NE(text.str().find("refused at last"), std::string::npos);
  EXPECT_NE(text.str().find("refusal 201"), std::string::npos);
}

}  // namespace
}  // namespace firn
