// Locks: none.
#include "allocator/command/order.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "allocator/command/graph_file.h"
#include "allocator/command/output.h"
#include "allocator/command/report.h"
#include "allocator/command/simulate_words.h"
#include "allocator/order/order.h"
#include "allocator/runtime/config.h"

namespace firn::command {
namespace {

using Json = nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;
constexpr uint64_t deadline_ns_most = 86'400'000'000'000;
constexpr unsigned threads_most = 1024;

int refuse_order(const std::string& text, int status = status_bad_input) {
  return refuse("order: " + text, status);
}

struct OrderPlan {
  order::Options solve;
  std::string order_out, layout_out;  // absolute paths; empty: not wanted
};

Result<OrderPlan> parse_order(const OrderOptions& options) {
  OrderPlan plan;
  Result<uint64_t> deadline = parse_time(options.deadline, deadline_ns_most);
  if (!deadline)
    return invalid("--deadline: " + deadline.error().text);
  plan.solve.deadline = std::chrono::nanoseconds(static_cast<int64_t>(*deadline));
  Result<uint64_t> seed = parse_number("--seed", options.seed, 0, ~uint64_t{0});
  if (!seed) return seed.error();
  plan.solve.seed = *seed;
  plan.solve.threads = std::clamp(std::thread::hardware_concurrency(), 1u, threads_most);
  if (options.threads) {
    Result<uint64_t> threads = parse_number("--threads", *options.threads, 1, threads_most);
    if (!threads) return threads.error();
    plan.solve.threads = static_cast<unsigned>(*threads);
  }
  if (!options.out) return plan;
  if (options.out->empty() || options.out->ends_with('/'))
    return invalid("-o " + quote_word(*options.out) + ": is not a prefix for file names");
  for (const auto& [end, to] : {std::pair{".order.csv", &plan.order_out},
                                {".layout.csv", &plan.layout_out}}) {
    Result<std::string> path = output_path("-o", *options.out + end);
    if (!path) return path.error();
    *to = *path;
  }
  return plan;
}

std::string text_of(const GraphFile& file, const order::Plan& found, double seconds) {
  const auto more = [&](uint64_t bytes) {
    return found.bound == 0
               ? 0.0
               : 100 * static_cast<double>(bytes - found.bound) / static_cast<double>(found.bound);
  };
  return fmt::format(
      "{} operators, {} storages: peak {} bytes in program order\n"
      "peak {} bytes, {:.3f} % above the bound of {} bytes\n"
      "height {} bytes, {:.3f} % above the bound, in {:.3f} s\n",
      file.ops().size(), file.storages().size(), found.peak_given, found.peak, more(found.peak),
      found.bound, found.height, more(found.height), seconds);
}

/// Writes files first: the printed text says that they are there.
int hand_over(const OrderOptions& options, const OrderPlan& plan, const GraphFile& file,
              const order::Plan& found, double seconds) {
  if (!plan.order_out.empty()) {
    Result<void> done = write_file("-o", plan.order_out, file.order_text(found.order));
    if (done) done = write_file("-o", plan.layout_out, file.layout_text(found.offsets));
    if (!done) return refuse_order(done.error().text, status_failed);
  }
  const Json json = {{"peak_program_order", found.peak_given},
                     {"peak", found.peak},
                     {"bound", found.bound},
                     {"height", found.height},
                     {"seconds", seconds},
                     {"operators", file.ops().size()},
                     {"storages", file.storages().size()},
                     {"optimal", found.height == found.bound}};
  if (Result<void> done = print(options.json ? dumped(json) : text_of(file, found, seconds)); !done)
    return refuse_order(done.error().text, status_failed);
  return status_ok;
}

}  // namespace

CLI::App* add_order(CLI::App& app, OrderOptions& options) {
  CLI::App* sub = app.add_subcommand(
      "order", "Order a graph's operators to keep little memory alive at once, and lay it out");
  sub->add_option("PREFIX", options.prefix,
                  "reads PREFIX.ops.csv (columns op, name, inputs, outputs, mutates) and "
                  "PREFIX.storages.csv (storage, bytes, kind)")
      ->required()
      ->type_name("");
  const auto add = [&](const char* name, auto& to, const std::string& meaning, const char* type) {
    sub->add_option(name, to, meaning)->type_name(type);
  };
  add("-o,--output", options.out,
      "write OUT.order.csv (column op) and OUT.layout.csv (storage, offset)", "OUT");
  add("--deadline", options.deadline, "time for reading and searching, at most a day [10s]",
      "TIME");
  add("--seed", options.seed, "seed of the orders that are tried [0]", "N");
  add("--threads", options.threads, "threads that search [one for each core]", "N");
  sub->add_flag("--json", options.json, "peaks, bound, height and seconds as JSON");
  sub->footer(
      "inputs, outputs, mutates: storages separated by blanks. kind: param, buffer, m, v, const\n"
      "(alive throughout), batch (from the start to its last use), temporary (from the operator\n"
      "that makes it to the last that names it). No order has a lower peak than the bound. The\n"
      "search ends at the bound, after long without an improvement, or at the deadline.\n"
      "One thread and one seed give the same answer again, unless time cuts a search short.\n"
      "Exit status 2: firn refused an argument or a file.");
  return sub;
}

int order(const OrderOptions& options) {
  Result<OrderPlan> plan = parse_order(options);
  if (!plan) return refuse_order(plan.error().text);
  const Clock::time_point begin = Clock::now();
  Result<GraphFile> file = GraphFile::read(options.prefix);
  if (!file) return refuse_order(file.error().text);
  order::Options solve = plan->solve;
  solve.deadline = std::max(solve.deadline - (Clock::now() - begin), std::chrono::nanoseconds(0));
  const order::Plan found = order::solve(file->storages(), file->ops(), solve);
  const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  return hand_over(options, *plan, *file, found, seconds);
}

}  // namespace firn::command
