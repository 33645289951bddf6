// Locks: none.
#include "allocator/command/layout.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>
#include <numeric>
#include <thread>
#include <vector>

#include "allocator/base/json_text.h"
#include "allocator/command/layout_file.h"
#include "allocator/command/output.h"
#include "allocator/command/plotter.h"
#include "allocator/command/report.h"
#include "allocator/command/simulate_words.h"
#include "allocator/layout/layout.h"
#include "allocator/runtime/config.h"

namespace firn::command {
namespace {

using Json = nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;
constexpr uint64_t deadline_ns_most = 86'400'000'000'000;
constexpr unsigned threads_most = 1024;
constexpr size_t drawn_most = 20'000;

int refuse_layout(const std::string& text, int status = status_bad_input) {
  return refuse("layout: " + text, status);
}

struct LayoutPlan {
  layout::Options solve;
  std::string out, plot;  // absolute paths; empty: not wanted
};

Result<LayoutPlan> parse_layout(const LayoutOptions& options) {
  LayoutPlan plan;
  if (options.capacity) {
    Result<uint64_t> bytes = parse_size(*options.capacity);
    if (!bytes) return invalid("--capacity: " + bytes.error().text);
    plan.solve.capacity = *bytes;
  }
  Result<uint64_t> deadline = parse_time(options.deadline, deadline_ns_most);
  if (!deadline) return invalid("--deadline: " + deadline.error().text);
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
  for (const auto& [option, given, to] :
       {std::tuple{"-o", &options.out, &plan.out}, {"--plot", &options.plot, &plan.plot}}) {
    if (!*given) continue;
    Result<std::string> path = output_path(option, **given);
    if (!path) return path.error();
    *to = *path;
  }
  return plan;
}

std::string plot_data(const LayoutFile& file, const layout::Layout& layout) {
  const std::span<const layout::Buffer> buffers = file.buffers();
  std::vector<uint32_t> drawn(buffers.size());
  std::iota(drawn.begin(), drawn.end(), 0u);
  const auto area = [&](uint32_t i) {
    return static_cast<double>(buffers[i].upper - buffers[i].lower) *
           static_cast<double>(buffers[i].size);
  };
  if (drawn.size() > drawn_most) {
    std::nth_element(drawn.begin(), drawn.begin() + drawn_most, drawn.end(),
                     [&](uint32_t a, uint32_t b) { return area(a) > area(b); });
    drawn.resize(drawn_most);
  }
  Json data = {{"kind", "layout"}, {"height", layout.height}, {"load", layout.load}};
  data["left_out"] = buffers.size() - drawn.size();
  uint64_t begin = buffers[0].lower, end = buffers[0].upper;
  for (const layout::Buffer& buffer : buffers) {
    begin = std::min(begin, buffer.lower);
    end = std::max(end, buffer.upper);
  }
  data["begin"] = begin;
  data["end"] = end;
  Json& corners = data["buffers"] = Json::array();
  for (uint32_t i : drawn)
    corners.push_back({buffers[i].lower, buffers[i].upper, layout.offsets[i], buffers[i].size});
  return json_text(data);
}

std::string layout_text(const LayoutFile& file, const layout::Layout& layout, double seconds) {
  return fmt::format(
      "{} buffers, load {} bytes at time {}\nheight {} bytes, {:.6f} x the load{}, in {:.3f} s\n",
      file.buffers().size(), layout.load, file.load().time, layout.height,
      static_cast<double>(layout.height) / static_cast<double>(layout.load),
      layout.optimal ? " (no layout is lower)" : "", seconds);
}

/// Writes files first: the printed text says that they are there.
int hand_over(const LayoutOptions& options, const LayoutPlan& plan, const LayoutFile& file,
              const std::optional<Plotter>& plotter, const layout::Layout& layout,
              double seconds) {
  Result<void> done;
  if (!plan.out.empty()) done = write_file("-o", plan.out, file.with_offsets(layout.offsets));
  if (done && plotter) done = plotter->draw(plot_data(file, layout), plan.plot);
  if (!done) return refuse_layout(done.error().text, status_failed);
  Json json = {{"height", layout.height},   {"load", layout.load},
               {"seconds", seconds},        {"buffers", file.buffers().size()},
               {"load_time", file.load().time}, {"optimal", layout.optimal}};
  const bool reached = !options.capacity || layout.height <= plan.solve.capacity;
  if (options.capacity) json["capacity_reached"] = reached;
  if (done = print(options.json ? dumped(json) : layout_text(file, layout, seconds)); !done)
    return refuse_layout(done.error().text, status_failed);
  if (reached) return status_ok;
  return refuse_layout(
      fmt::format("--capacity {} was not reached: height {} {}", plan.solve.capacity,
                  layout.height,
                  layout.optimal ? "is proven to be the lowest"
                                 : fmt::format("after {:.3f} s (--deadline gives more)", seconds)),
      status_failed);
}

}  // namespace

CLI::App* add_layout(CLI::App& app, LayoutOptions& options) {
  CLI::App* sub = app.add_subcommand(
      "layout",
      "Assign addresses to buffers with known lifetimes, in as little memory as possible");
  sub->add_option("INSTANCE.csv", options.instance,
                  "columns id, lower, upper, size: alive in [lower, upper), size in bytes")
      ->required()
      ->type_name("");
  const auto add = [&](const char* name, auto& to, const std::string& meaning, const char* type) {
    sub->add_option(name, to, meaning)->type_name(type);
  };
  add("--capacity", options.capacity,
      "stop at the first layout of at most this height [search for the lowest]", "SIZE");
  add("--deadline", options.deadline, "time for reading and searching, at most a day [10s]",
      "TIME");
  add("--seed", options.seed, "seed of the orders that are tried [0]", "N");
  add("--threads", options.threads, "threads that search [one for each core]", "N");
  add("-o,--output", options.out, "write the instance here, with the column `offset`", "FILE.csv");
  add("--plot", options.plot, "draw the layout here: time across, addresses up", "FILE.png");
  sub->add_flag("--json", options.json, "height, load and seconds as JSON");
  sub->footer(
      "No layout is lower than the load, the largest sum of sizes alive at once. The search ends\n"
      "at the load, at a layout that is proven to be the lowest, or at the deadline with the best\n"
      "so far. One thread and one seed give the same layout again, unless the deadline cuts the\n"
      "search short. Exit status 2: firn refused an argument or the file; 1: the capacity was not\n"
      "reached.");
  return sub;
}

int layout(const LayoutOptions& options) {
  Result<LayoutPlan> plan = parse_layout(options);
  if (!plan) return refuse_layout(plan.error().text);
  std::optional<Plotter> plotter;
  if (!plan->plot.empty()) {
    Result<Plotter> found = Plotter::find();
    if (!found) return refuse_layout("--plot: " + found.error().text);
    plotter = std::move(*found);
  }
  const Clock::time_point begin = Clock::now();
  Result<LayoutFile> file = LayoutFile::read(options.instance);
  if (!file) return refuse_layout(file.error().text);
  const layout::Load load = file->load();
  if (options.capacity && plan->solve.capacity < load.bytes)
    return refuse_layout(fmt::format(
        "{}: --capacity {} is below the load: {} bytes are alive at time {}",
        file->file_and_line(load.buffer), plan->solve.capacity, load.bytes, load.time));
  layout::Options solve = plan->solve;
  solve.deadline = std::max(solve.deadline - (Clock::now() - begin), std::chrono::nanoseconds(0));
  const layout::Layout found = layout::solve(file->buffers(), solve);
  const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  return hand_over(options, *plan, *file, plotter, found, seconds);
}

}  // namespace firn::command
