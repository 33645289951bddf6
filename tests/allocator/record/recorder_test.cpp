// The recorder on the software GPU's virtual clock: what counts as an operator's time, which blocks
// it uses, and what is said at the end.
#include "allocator/record/recorder.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <vector>

#include "allocator/simulate/program_trace.h"
#include "tests/allocator/simulation.h"

namespace firn::record {
namespace {

constexpr uint64_t ms = 1'000'000;

class Recorded : public ::testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/firn-recorder-XXXXXX";
    ASSERT_NE(::mkdtemp(name), nullptr);
    folder_ = name;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::string prefix() const { return folder_ + "/job"; }
  void* block(uint64_t number) const { return reinterpret_cast<void*>((number + 1) << 24); }
  void allocate(Recorder& recorder, uint64_t number) {
    recorder.allocated(reinterpret_cast<uint64_t>(block(number)), 4u << 20);
  }
  void work(CUstream stream, uint64_t ns) { ASSERT_EQ(sim_.gpu().busy(stream, ns), 0); }
  /// One that works for `ns` and writes the block.
  void run(Recorder& recorder, const char* name, uint64_t number, uint64_t ns) {
    Operator op;
    op.name = name;
    recorder.uses(op, block(number), true);
    recorder.resume(op, stream_);
    work(stream_, ns);
    recorder.end(op);
  }
  /// What finish() wrote; what it said is in said_.
  simulate::ProgramTrace finish(Recorder& recorder) {
    sim_.synchronize();
    ::testing::internal::CaptureStderr();
    recorder.finish();
    said_ = ::testing::internal::GetCapturedStderr();
    Result<simulate::ProgramTrace> trace = simulate::read_program_trace(prefix());
    EXPECT_TRUE(trace) << trace.error().text;
    return trace ? std::move(*trace) : simulate::ProgramTrace();
  }

  test::Simulation sim_{{}};
  CUstream stream_ = sim_.make_stream(0), other_ = sim_.make_stream(0);
  std::string folder_, said_;
};

TEST_F(Recorded, time_is_that_of_the_work_and_not_of_waits) {
  Recorder recorder(sim_.driver(), sim_.context(0), prefix());
  allocate(recorder, 0);
  Operator op;
  op.name = "waits";
  recorder.uses(op, block(0), false);
  recorder.resume(op, stream_);
  work(stream_, 1 * ms);
  recorder.pause(op);  // a block has to come back
  {
    Driver::ContextGuard context(sim_.driver(), sim_.context(0));
    work(other_, 50 * ms);
    CUevent arrival = nullptr;
    ASSERT_EQ(sim_.driver().event_create(&arrival, CU_EVENT_DISABLE_TIMING), CUDA_SUCCESS);
    ASSERT_EQ(sim_.driver().event_record(arrival, other_), CUDA_SUCCESS);
    ASSERT_EQ(sim_.driver().stream_wait_event(stream_, arrival, 0), CUDA_SUCCESS);
    ASSERT_EQ(sim_.driver().event_destroy(arrival), CUDA_SUCCESS);
  }
  recorder.resume(op, stream_);
  work(stream_, 2 * ms);
  recorder.end(op);
  run(recorder, "works", 0, 5 * ms);
  const simulate::ProgramTrace trace = finish(recorder);
  ASSERT_EQ(trace.kernels.size(), 2u);
  EXPECT_NEAR(static_cast<double>(trace.kernels[0].duration_ns), 3 * ms, 2000);
  EXPECT_NEAR(static_cast<double>(trace.kernels[1].duration_ns), 5 * ms, 2000);
  EXPECT_NE(said_.find("no iteration"), std::string::npos) << said_;
}

TEST_F(Recorded, what_is_written_again_is_read_too) {
  Recorder recorder(sim_.driver(), sim_.context(0), prefix());
  allocate(recorder, 0);
  run(recorder, "fill", 0, ms);
  run(recorder, "add", 0, ms);
  const simulate::ProgramTrace trace = finish(recorder);
  ASSERT_EQ(trace.kernels.size(), 2u);
  EXPECT_EQ(trace.kernels[0].inputs, 0u);
  EXPECT_EQ(trace.kernels[0].outputs, 1u);
  EXPECT_EQ(trace.kernels[1].inputs, 1u);
  EXPECT_EQ(trace.kernels[1].outputs, 1u);
}

TEST_F(Recorded, an_allocation_alone_is_no_kernel_and_what_it_makes_no_input) {
  Recorder recorder(sim_.driver(), sim_.context(0), prefix());
  Operator empty;
  empty.name = "empty";
  allocate(recorder, 0);
  recorder.makes(empty, block(0));
  recorder.resume(empty, stream_);
  recorder.end(empty);
  Operator op;
  op.name = "relu";
  recorder.uses(op, block(0), false);
  recorder.uses(op, block(0), false);
  allocate(recorder, 1);
  recorder.makes(op, block(1));
  recorder.uses(op, block(1), false);
  recorder.uses(op, block(7), true);  // nobody's
  recorder.resume(op, stream_);
  work(stream_, ms);
  recorder.end(op);
  const simulate::ProgramTrace trace = finish(recorder);
  ASSERT_EQ(trace.kernels.size(), 1u);
  EXPECT_EQ(trace.name(trace.kernels[0]), "relu");
  EXPECT_EQ(trace.kernels[0].inputs, 1u);
  EXPECT_EQ(trace.kernels[0].outputs, 1u);
}

TEST_F(Recorded, blocks_are_in_the_order_in_which_an_operator_names_them) {
  Recorder recorder(sim_.driver(), sim_.context(0), prefix());
  for (uint64_t number = 0; number < 6; ++number) {
    allocate(recorder, number);
    run(recorder, "fill", number, ms);
  }
  Operator op;
  op.name = "aten::_foreach_add_";
  for (uint64_t number : {4, 1, 3, 1, 0}) recorder.uses(op, block(number), false);
  for (uint64_t number : {4, 1}) recorder.uses(op, block(number), true);
  recorder.resume(op, stream_);
  work(stream_, ms);
  recorder.end(op);
  const simulate::ProgramTrace trace = finish(recorder);
  ASSERT_EQ(trace.kernels.size(), 7u);
  std::vector<uint64_t> inputs, outputs, filled;
  for (uint32_t tensor : trace.inputs(trace.kernels[6])) inputs.push_back(trace.tensors[tensor].id);
  for (uint32_t tensor : trace.outputs(trace.kernels[6]))
    outputs.push_back(trace.tensors[tensor].id);
  for (int number = 0; number < 6; ++number)
    filled.push_back(trace.tensors[trace.outputs(trace.kernels[static_cast<size_t>(number)])[0]].id);
  EXPECT_EQ(inputs, (std::vector<uint64_t>{filled[4], filled[1], filled[3], filled[0]}));
  EXPECT_EQ(outputs, (std::vector<uint64_t>{filled[4], filled[1]}));
}

TEST_F(Recorded, a_full_recording_says_so_and_is_valid) {
  Recorder recorder(sim_.driver(), sim_.context(0), prefix(), 3);
  allocate(recorder, 0);
  for (int i = 0; i < 10; ++i) run(recorder, "k", 0, ms);
  const simulate::ProgramTrace trace = finish(recorder);
  EXPECT_EQ(trace.kernels.size(), 3u);
  EXPECT_NE(said_.find("3 operators"), std::string::npos) << said_;
}

}  // namespace
}  // namespace firn::record
