// Rows at the host: times computed by hand, what waits for what, and what the engine makes of uses
// in host memory that it foresees.
#include "allocator/simulate/host_work.h"

#include <nlohmann/json.hpp>

#include <vector>

#include "tests/allocator/simulate/written.h"

namespace firn::simulate {
namespace {

constexpr uint64_t ms = 1'000'000, size = 32 * MiB;
const double way = 32.0 / 1024 / 16;  // seconds of one tensor over the link

/// All of it fits the GPU, and six iterations of it run.
ReplayResult run_roomy(const Written& program, Timeline* timeline = nullptr,
                       uint64_t gpu_bytes = 1 * GiB) {
  ReplayOptions options;
  options.timeline = timeline;
  MachineOptions machine = machine_of(gpu_bytes);
  machine.policy = ComparedPolicy::lifetime;
  return run_on(machine, program.trace(), options);
}

struct Ran {
  uint64_t begin_ns, end_ns;
};
std::vector<Ran> ran(const Timeline& timeline, Track track, uint32_t row) {
  std::vector<Ran> found;
  for (const Span& span : timeline.spans)
    if (span.track == track && span.kernel == row) found.push_back({span.begin_ns, span.end_ns});
  return found;
}

TEST(HostWork, runs_beside_the_device) {
  Written program;
  program.kernel(10 * ms, {}, {});
  program.host(8 * ms, {}, {});
  program.kernel(10 * ms, {}, {});
  Timeline timeline;
  const ReplayResult result = run_roomy(program, &timeline);
  EXPECT_NEAR(result.steady_s, 0.020, 1e-9);
  EXPECT_NEAR(result.ideal_s, 0.020, 1e-9) << "of the device";
  EXPECT_EQ(result.host_rows, 1u);
  EXPECT_NEAR(result.host_s, 0.008, 1e-9);
  EXPECT_EQ(result.host_waited_s, 0);
  EXPECT_EQ(result.stall_for_host_s, 0);
  EXPECT_EQ(result.bytes_used_at_host, 0);
  const std::vector<Ran> rows = ran(timeline, Track::host, 1);
  ASSERT_EQ(rows.size(), 6u);
  for (size_t i = 0; i < rows.size(); ++i) {
    EXPECT_EQ(rows[i].begin_ns - timeline.begin_ns, (20 * i) * ms) << "it depends on no kernel";
    EXPECT_EQ(rows[i].end_ns - rows[i].begin_ns, 8 * ms);
  }
}

/// One after the other, from the launch of the kernel in front of them on; the next kernel waits for
/// the one that writes what it reads.
TEST(HostWork, one_row_runs_at_a_time) {
  Written program;
  const uint32_t small = program.persistent(4096);
  program.kernel(1 * ms, {small}, {});
  program.host(5 * ms, {}, {});
  program.host(5 * ms, {}, {});
  program.host(5 * ms, {}, {small});
  const ReplayResult result = run_roomy(program);
  EXPECT_NEAR(result.steady_s, 0.015, 1e-9);
  EXPECT_NEAR(result.stall_for_host_s, 0.014, 1e-9);
  EXPECT_NEAR(result.stall_s, 0.014, 1e-9);
}

/// A gradient goes to the host when the kernel that writes it is over, while the next one runs; the
/// row waits for it. The weight that it writes comes back before the kernel that reads it starts.
TEST(HostWork, a_row_waits_for_the_kernel_and_a_kernel_for_the_row) {
  Written program;
  const uint32_t weight = program.persistent(size), gradient = program.tensor(size);
  program.kernel(4 * ms, {weight}, {});
  program.kernel(4 * ms, {weight}, {gradient});
  program.host(20 * ms, {gradient}, {weight});
  program.kernel(1 * ms, {}, {});
  Timeline timeline;
  const ReplayResult result = run_roomy(program, &timeline);
  // From the second iteration on the weight's host copy is valid when the row takes it.
  EXPECT_NEAR(result.steady_s, 0.008 + way + 0.020 + way, 1e-8);
  EXPECT_NEAR(result.host_waited_s, way, 1e-8);
  EXPECT_NEAR(result.stall_for_host_s, way + 0.020 - 0.001, 1e-8);
  EXPECT_EQ(result.bytes_used_at_host, 2.0 * size);
  EXPECT_EQ(result.bytes_spilled, 1.0 * size) << "the gradient; the weight's copy is valid";
  const std::vector<Ran> rows = ran(timeline, Track::host, 2),
                         written = ran(timeline, Track::kernel, 1),
                         first = ran(timeline, Track::kernel, 0);
  ASSERT_EQ(rows.size(), 6u);
  for (size_t i = 0; i < 6; ++i) {
    EXPECT_GE(rows[i].begin_ns, written[i].end_ns);
    if (i > 0) {
      EXPECT_GE(first[i].begin_ns, rows[i - 1].end_ns);
    }
  }
}

/// A kernel may read what a row reads; it waits where it writes it. (The row then follows the kernel
/// of the iteration before, beside the last kernel of that.)
TEST(HostWork, a_kernel_that_writes_waits_for_rows_that_read) {
  for (const bool writes : {false, true}) {
    Written program;
    const uint32_t small = program.persistent(4096);
    const std::vector<uint32_t> one{small}, none;
    program.host(6 * ms, {small}, {});
    program.kernel(1 * ms, writes ? none : one, writes ? one : none);
    program.kernel(2 * ms, {}, {});
    const ReplayResult result = run_roomy(program);
    EXPECT_NEAR(result.steady_s, writes ? 0.007 : 0.003, 1e-9);
  }
}

/// Two gradients go out one after the other, beside the next kernel and the first row.
TEST(HostWork, what_the_next_rows_use_is_gathered_while_one_runs) {
  Written program;
  const uint32_t a = program.tensor(size), b = program.tensor(size);
  program.kernel(1 * ms, {}, {a, b});
  program.host(5 * ms, {a}, {});
  program.host(5 * ms, {b}, {});
  program.kernel(1 * ms, {}, {});
  Timeline timeline;
  const ReplayResult result = run_roomy(program, &timeline);
  const std::vector<Ran> first = ran(timeline, Track::host, 1),
                         second = ran(timeline, Track::host, 2);
  ASSERT_EQ(second.size(), 6u);
  EXPECT_EQ(first[0].begin_ns - timeline.begin_ns, 1 * ms + static_cast<uint64_t>(way * 1e9));
  EXPECT_EQ(second[0].begin_ns, first[0].end_ns) << "its bytes came meanwhile";
  EXPECT_NEAR(result.host_waited_s, way, 1e-8);
}

TEST(HostWork, a_row_whose_tensors_host_memory_cannot_hold_ends_the_run) {
  Written program;
  const uint32_t large = program.persistent(512 * MiB);
  program.kernel(1 * ms, {large}, {});
  program.host(1 * ms, {}, {large});
  MachineOptions options = machine_of(1 * GiB, 256 * MiB);
  Result<std::unique_ptr<Machine>> machine = Machine::open(options);
  ASSERT_TRUE(machine);
  Result<ReplayResult> result = replay(**machine, program.trace(), {});
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().code, Code::host_out_of_memory);
  EXPECT_NE(result.error().text.find("iteration 0"), std::string::npos) << result.error().text;
}

/// States of 2 GiB that the host alone uses, in turn, with 1.5 GiB of host memory: what the SSD has
/// comes back before its use. (By age nobody knows of it: each row waits for the SSD.)
TEST(HostWork, uses_there_are_foreseen_and_the_rest_comes_from_the_ssd_in_time) {
  constexpr int states = 32;
  Written program;
  std::vector<uint32_t> of(states);
  for (uint32_t& each : of) each = program.persistent(64 * MiB);
  for (int i = 0; i < states; ++i) {
    program.kernel(40 * ms, {program.persistent(2 * MiB)}, {});
    program.host(10 * ms, {}, {of[i]});
  }
  MachineOptions options = machine_of(256 * MiB, 1536 * MiB);
  EXPECT_NEAR(run_on(options, program.trace()).host_waited_s, states * 64.0 / 4096, 0.01);
  options.policy = ComparedPolicy::lifetime;
  const ReplayResult result = run_on(options, program.trace());
  EXPECT_GT(result.bytes_read, 0.5 * static_cast<double>(GiB));
  EXPECT_LT(result.host_waited_s, 0.001);
}

/// Nothing happens in the program while it waits for the last row: what the earlier ones wrote
/// comes back meanwhile.
TEST(HostWork, what_rows_wrote_comes_back_while_the_program_waits) {
  Written program;
  std::vector<uint32_t> weights(8);
  for (uint32_t& each : weights) each = program.persistent(size);
  for (const uint32_t each : weights) program.kernel(2 * ms, {each}, {});
  for (size_t i = weights.size(); i-- > 0;) {
    const uint32_t gradient = program.tensor(size);
    program.kernel(2 * ms, {weights[i]}, {gradient});
    program.host(10 * ms, {gradient}, {weights[i]});
  }
  const ReplayResult result = run_roomy(program);
  EXPECT_LE(result.bytes_faulted, 1.0 * size) << "the last one, which the program waits for";
  EXPECT_NEAR(result.steady_s, 0.016 + 0.002 + way + 0.080 + way, 0.001);
}

TEST(HostWork, the_timeline_has_rows_of_its_own) {
  Written program;
  program.kernel(1 * ms, {}, {});
  Timeline without, with;
  run_roomy(program, &without);
  const ProgramTrace on_device = program.trace();
  program.host(1 * ms, {}, {});
  run_roomy(program, &with);
  const auto names = [](const Timeline& timeline, const ProgramTrace& trace) {
    std::vector<std::string> found;
    const auto written = nlohmann::json::parse(chrome_trace(timeline, trace));
    for (const auto& each : written.at("traceEvents"))
      if (each.value("name", "") == "thread_name") found.push_back(each.at("args").at("name"));
    return found;
  };
  EXPECT_EQ(names(without, on_device).size(), 6u);
  const std::vector<std::string> all = names(with, program.trace());
  ASSERT_EQ(all.size(), 8u);
  EXPECT_EQ(all[6], "host work");
}

}  // namespace
}  // namespace firn::simulate
