// Groups: see group.h.
#include "backing/gpu/software/nccl/group.h"

#include <algorithm>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "backing/gpu/software/nccl/launch.h"

namespace firn::nccl {
namespace {

// Before anything has been measured.
constexpr double bytes_per_microsecond = 1000;

struct Plan {
  ncclComm_t comm;
  std::vector<CUstream> streams;
  std::vector<Work> works;
};

struct Group {
  int depth = 0;
  std::vector<Plan> plans;
  std::vector<std::function<ncclResult_t()>> making;
};

Group& group() {
  static thread_local Group mine;
  return mine;
}

void put(Group& to, ncclComm_t comm, CUstream stream, const Work& work) {
  auto plan = std::find_if(to.plans.begin(), to.plans.end(),
                           [&](const Plan& each) { return each.comm == comm; });
  if (plan == to.plans.end()) plan = to.plans.insert(plan, Plan{comm, {}, {}});
  if (std::find(plan->streams.begin(), plan->streams.end(), stream) == plan->streams.end())
    plan->streams.push_back(stream);
  plan->works.push_back(work);
}

/// Each in a thread of its own, since all wait for one another. Returns the first error, with its
/// words in the calling thread.
ncclResult_t make_all(const std::vector<std::function<ncclResult_t()>>& making) {
  if (making.size() == 1) return making.front()();
  std::vector<ncclResult_t> results(making.size(), ncclSuccess);
  std::vector<std::string> words(making.size());
  std::vector<std::thread> threads;
  for (size_t i = 0; i < making.size(); ++i)
    threads.emplace_back([&, i] {
      results[i] = making[i]();
      words[i] = last_error();
    });
  for (std::thread& each : threads) each.join();
  for (size_t i = 0; i < making.size(); ++i)
    if (results[i] != ncclSuccess) return fail(results[i], "%s", words[i].c_str());
  return ncclSuccess;
}

ncclResult_t launch_all(std::vector<Plan> plans) {
  for (Plan& plan : plans) {
    // In every rank's list the sends and receives are last, so their order is the same everywhere.
    std::stable_partition(plan.works.begin(), plan.works.end(), [](const Work& work) {
      return !is_point_to_point(work.function);
    });
    FIRN_NCCL_TRY(launch(plan.comm, plan.streams, plan.works));
  }
  return ncclSuccess;
}

}  // namespace

void group_start() { ++group().depth; }

ncclResult_t group_end() {
  Group& mine = group();
  if (mine.depth == 0) return fail(ncclInvalidUsage, "ncclGroupEnd without ncclGroupStart");
  if (--mine.depth != 0) return ncclSuccess;
  const auto making = std::exchange(mine.making, {});
  auto plans = std::exchange(mine.plans, {});
  if (!making.empty()) FIRN_NCCL_TRY(make_all(making));
  return launch_all(std::move(plans));
}

ncclResult_t group_simulate_end(float* microseconds) {
  Group& mine = group();
  if (mine.depth == 0) return fail(ncclInvalidUsage, "ncclGroupSimulateEnd without a group");
  if (--mine.depth != 0) return ncclSuccess;
  mine.making.clear();
  double longest = 0;
  for (const Plan& plan : std::exchange(mine.plans, {})) {
    uint64_t bytes = 0;
    for (const Work& work : plan.works) bytes += bytes_of(work, plan.comm->shared->ranks());
    const auto moved = static_cast<double>(plan.comm->moved_bytes.load());
    const double took = static_cast<double>(plan.comm->moving_ns.load()) / 1000;
    const double rate = moved > 0 && took > 0 ? moved / took : bytes_per_microsecond;
    longest = std::max(longest, static_cast<double>(bytes) / rate);
  }
  *microseconds = static_cast<float>(longest);
  return ncclSuccess;
}

ncclResult_t enqueue(ncclComm_t comm, CUstream stream, const Work& work) {
  Group& mine = group();
  if (mine.depth == 0) return launch(comm, std::span(&stream, 1), std::span(&work, 1));
  put(mine, comm, stream, work);
  return ncclSuccess;
}

ncclResult_t enqueue_making(std::function<ncclResult_t()> make) {
  Group& mine = group();
  if (mine.depth == 0) return make();
  mine.making.push_back(std::move(make));
  return ncclSuccess;
}

}  // namespace firn::nccl
