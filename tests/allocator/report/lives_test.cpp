// A trace's rows as lives of blocks, waits and samples.
#include "allocator/report/lives.h"

#include <gtest/gtest.h>

#include "tests/allocator/report/trace_text.h"

namespace firn::report {
namespace {

Result<Lives> read(const std::string& rows) {
  TraceText text(rows);
  Result<TraceFile> file = TraceFile::open(text.path);
  if (!file) return file.error();
  return Lives::read(*file);
}

/// "where begin end" of a life's stretches, one after the other.
std::string stretches(const DeviceLives& device, uint32_t life) {
  std::string text;
  for (const Stretch& each : device.stretches)
    if (each.life == life && each.begin_ns != each.end_ns)
      text += std::to_string(static_cast<int>(each.where)) + " " + std::to_string(each.begin_ns) +
              " " + std::to_string(each.end_ns) + ", ";
  return text;
}

TEST(Lives, who_allocated_and_what_was_said) {
  Result<Lives> lives = read(
      "100,alloc,0,0,4096,50,\n101,made,0,0,4096,0,aten::mm\n102,alloc,0,0,8192,50,\n"
      "103,made,0,0,12288,0,aten::add\n110,notice,0,0,0,0,\"thrash: a, b\"\n");
  ASSERT_TRUE(lives) << lives.error().text;
  const DeviceLives& device = lives->devices.at(0);
  ASSERT_EQ(device.lives.size(), 2u);
  EXPECT_EQ(lives->words.at(device.lives[0].maker), "aten::mm");
  EXPECT_EQ(device.lives[1].maker, none);
  ASSERT_EQ(device.notices.size(), 1u);
  EXPECT_EQ(device.notices[0].at_ns, 10u);
  EXPECT_EQ(device.notices[0].words, "thrash: a, b");
}

TEST(Lives, a_block_that_is_made_again) {
  Result<Lives> lives = read(
      "100,alloc,0,0,4096,50,\n110,spill,0,0,4096,50,by recipe\n120,dropped,0,0,4096,50,\n"
      "130,remake,0,0,4096,50,\n140,unfault,0,0,4096,50,\n150,remake,0,0,4096,50,\n"
      "160,remade,0,0,4096,50,\n170,sample,0,0,0,0,resident=7;away_nvme=3;dropped=5\n");
  ASSERT_TRUE(lives) << lives.error().text;
  const DeviceLives& device = lives->devices.at(0);
  EXPECT_EQ(stretches(device, 0),
            "0 0 10, 1 10 20, 4 20 30, 7 30 40, 4 40 50, 7 50 60, 0 60 70, ");
  ASSERT_EQ(device.samples.size(), 1u);
  EXPECT_EQ(device.samples[0].away_nvme, 3u);
  EXPECT_EQ(device.samples[0].dropped, 5u);
}

TEST(Lives, a_block_that_leaves_and_comes_back) {
  Result<Lives> lives = read(
      "100,alloc,0,0,4096,50,\n110,touch,0,0,4096,50,write\n120,spill,0,0,4096,50,\n"
      "130,copied_out,0,0,4096,50,\n140,written,0,0,4096,50,\n150,fault,0,0,4096,50,\n"
      "160,arrived,0,0,4096,50,\n170,spill,0,0,4096,50,ahead\n175,kept,0,0,4096,50,\n"
      "180,free,0,0,4096,50,\n190,alloc,0,0,4096,60,\n200,prefetch,0,0,4096,60,\n"
      "210,sample,0,0,0,0,resident=7;away_host=2;away_nvme=3;hosted=4;nvme=5;out=6\n");
  ASSERT_TRUE(lives) << lives.error().text;
  const DeviceLives& device = lives->devices.at(0);
  ASSERT_EQ(device.lives.size(), 2u);
  EXPECT_EQ(stretches(device, 0), "0 0 20, 1 20 30, 2 30 40, 3 40 50, 5 50 60, 0 60 70, 1 70 75, "
                                  "0 75 80, ");
  EXPECT_EQ(stretches(device, 1), "0 90 100, 6 100 110, ");
  EXPECT_EQ(device.lives[0].born_ns, 0u);
  EXPECT_EQ(device.lives[0].died_ns, 80u);
  EXPECT_EQ(device.lives[1].died_ns, 110u);  // the end
  ASSERT_EQ(device.samples.size(), 1u);
  EXPECT_EQ(device.samples[0].away_nvme, 3u);
  EXPECT_EQ(device.samples[0].copies, 9u);
  EXPECT_FALSE(lives->ended);
  EXPECT_EQ(lives->duration_ns, 110u);
}

TEST(Lives, a_way_back_that_failed) {
  Result<Lives> lives = read(
      "100,alloc,0,0,4096,50,\n120,spill,0,0,4096,50,\n130,copied_out,0,0,4096,50,\n"
      "150,fault,0,0,4096,50,\n155,unfault,0,0,4096,50,\n160,fault,0,0,4096,50,\n"
      "165,unfault,0,0,4096,50,\n165,written,0,0,4096,50,\n200,free,0,0,4096,50,\n");
  ASSERT_TRUE(lives) << lives.error().text;
  EXPECT_EQ(stretches(lives->devices.at(0), 0),
            "0 0 20, 1 20 30, 2 30 50, 5 50 55, 2 55 60, 5 60 65, 3 65 100, ");
}

TEST(Lives, a_program_that_allocated_nothing) {
  Result<Lives> lives = read("100,begin,0,0,0,0,pid=7;command=x\n");
  ASSERT_TRUE(lives) << lives.error().text;
  ASSERT_EQ(lives->devices.size(), 1u);
  EXPECT_TRUE(lives->devices.at(0).lives.empty());
  EXPECT_FALSE(lives->ended);
  lives = read("100,begin,0,0,0,0,pid=7;command=x\n110,end,0,0,0,0,\n");
  ASSERT_TRUE(lives) << lives.error().text;
  EXPECT_TRUE(lives->ended);
}

TEST(Lives, who_waited_and_where) {
  Result<Lives> lives = read(
      "0,alloc,0,0,4096,50,\n100,stall,0,1,4096,40,aten::mm\n105,stall,1,2,0,9,\n"
      "110,stall,0,1,0,5,aten::mm\n111,site,0,1,2,45,\"a.py:7 in f\"\n"
      "120,stall,0,1,4096,500,aten::add\n130,pin,0,0,4096,50,\"why, then\"\n"
      "140,pinned,0,0,0,77,segments\n150,end,0,0,0,0,budget=9;stalls=3\n");
  ASSERT_TRUE(lives) << lives.error().text;
  const auto& stalls = lives->devices.at(0).stalls;
  ASSERT_EQ(stalls.size(), 3u);
  const auto word = [&](uint32_t number) {
    return number == none ? std::string("none") : lives->words.at(number);
  };
  EXPECT_EQ(stalls[0].life, 0u);
  EXPECT_EQ(word(stalls[0].name), "aten::mm");
  EXPECT_EQ(word(stalls[0].site), "a.py:7 in f");
  EXPECT_EQ(stalls[1].life, none);
  EXPECT_EQ(word(stalls[1].site), "a.py:7 in f");
  EXPECT_EQ(word(stalls[2].site), "none");
  EXPECT_EQ(stalls[2].ns, 120u);  // not before the trace
  const auto& others = lives->devices.at(1).stalls;
  ASSERT_EQ(others.size(), 1u);
  EXPECT_EQ(word(others[0].name), "none");
  EXPECT_EQ(word(others[0].site), "none");  // another thread's line
  EXPECT_EQ(word(lives->devices.at(0).lives[0].pin_reason), "why, then");
  EXPECT_EQ(lives->devices.at(0).pinned.at(0).bytes, 77u);
  EXPECT_EQ(lives->devices.at(0).totals.at("stalls"), 3u);
  EXPECT_TRUE(lives->ended);
}

TEST(Lives, rows_out_of_order_and_of_unknown_blocks) {
  Result<Lives> lives = read(
      "100,alloc,0,0,4096,50,\n90,touch,0,0,4096,50,read\n80,free,0,0,8192,50,\n"
      "95,spill,0,0,4096,50,\n94,copied_out,0,0,4096,50,\n200,alloc,0,0,4096,50,\n");
  ASSERT_TRUE(lives) << lives.error().text;
  const DeviceLives& device = lives->devices.at(0);
  ASSERT_EQ(device.lives.size(), 2u);  // the second takes the first one's place
  EXPECT_EQ(stretches(device, 0), "2 0 100, ");
  EXPECT_FALSE(read(""));
}

}  // namespace
}  // namespace firn::report
