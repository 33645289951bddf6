#include "allocator/runtime/oom_page.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <ctime>
#include <memory>

#include <fmt/format.h>

#include "allocator/base/html_text.h"
#include "allocator/base/sizes.h"
#include "allocator/runtime/command_line.h"
#include "firn/output_file.h"
#include "firn/said.h"

namespace firn {

namespace {
constexpr size_t rows_most = 300;  // of blocks, per device
constexpr std::array colours{"#c65b5b", "#d08a3e", "#8f6fb3", "#4f8fa8", "#a07c55", "#7a8f4a"};

constexpr std::string_view style = R"(
:root { color-scheme: light dark; --ink: #1d2733; --soft: #66727f; --line: #dde2e8; --paper: #fff;
  --back: #f4f6f8; --said: #fff4d6; }
@media (prefers-color-scheme: dark) { :root { --ink: #e3e8ee; --soft: #98a4b1; --line: #313a45;
  --paper: #1b2129; --back: #12161b; --said: #3a3115; } }
body { margin: 0; padding: 18px 24px 32px; background: var(--back); color: var(--ink);
  font: 14px/1.45 system-ui, "DejaVu Sans", sans-serif; }
h1 { font-size: 20px; margin: 0; } h2 { font-size: 15px; margin: 0 0 8px; }
.soft { color: var(--soft); font-size: 12px; overflow-wrap: anywhere; }
.said { background: var(--said); border-radius: 6px; padding: 8px 12px; overflow-wrap: anywhere; }
section { background: var(--paper); border: 1px solid var(--line); border-radius: 6px;
  padding: 12px; margin: 12px 0; overflow-x: auto; }
.bar { display: flex; height: 26px; border: 1px solid var(--line); margin: 8px 0; }
.bar div { min-width: 1px; } .key { display: inline-block; width: 11px; height: 11px; }
table { border-collapse: collapse; font-size: 13px; }
th { text-align: left; color: var(--soft); font-weight: 500; }
th, td { padding: 3px 14px 3px 0; border-bottom: 1px solid var(--line); }
.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
)";

struct Part {
  std::string what;
  uint64_t bytes;
  std::string_view colour;
};

/// The parts of the budget, the largest reason first; they sum to the budget, or to the memory that
/// is held if that is more.
std::vector<Part> parts_of(const EngineStats& s) {
  std::vector<Part> parts;
  uint64_t stays = 0;
  for (const PinnedBytes& each : s.pinned) {
    parts.push_back({"stays: " + each.reason, each.bytes, colours[parts.size() % colours.size()]});
    stays += each.bytes;
  }
  const uint64_t gaps = std::min(s.gap_bytes, s.device_bytes - std::min(stays, s.device_bytes));
  const uint64_t held = stays + gaps;
  if (s.device_bytes > held)
    parts.push_back({"can leave, is moving, or is cached for the next allocation of its size",
                     s.device_bytes - held, "#5b9a68"});
  if (gaps > 0) parts.push_back({"gaps of shared frames", gaps, "#b9a24a"});
  if (s.budget_bytes > s.device_bytes)
    parts.push_back({"free", s.budget_bytes - s.device_bytes, "transparent"});
  return parts;
}

void add_budget(std::string& out, const EngineStats& s) {
  const std::vector<Part> parts = parts_of(s);
  out += "<div class=\"bar\">";
  for (const Part& part : parts)
    out += fmt::format("<div style=\"flex:{} 1 0;background:{}\" title=\"{}: {}\"></div>",
                       std::max<uint64_t>(part.bytes >> 10, 1), part.colour, html_text(part.what),
                       format_size(part.bytes));
  out += "</div>\n<table>\n";
  for (const Part& part : parts)
    out += fmt::format("<tr><td><span class=\"key\" style=\"background:{}\"></span></td>"
                       "<td class=\"n\">{}</td><td>{}</td></tr>\n",
                       part.colour, format_size(part.bytes), html_text(part.what));
  out += "</table>\n";
  out += fmt::format(
      "<p class=\"soft\">Allocated {} (peak {}), of which {} in host memory and {} on disks. Moved "
      "since the start: {} out, {} back. Refused {} times.</p>\n",
      format_size(s.allocated_bytes), format_size(s.peak_allocated_bytes),
      format_size(s.hosted_bytes), format_size(s.nvme_bytes), format_size(s.spilled_bytes),
      format_size(s.faulted_bytes + s.prefetched_bytes), s.oom_count);
}

void add_blocks(std::string& out, std::vector<BlockInfo> blocks) {
  std::erase_if(blocks, [](const BlockInfo& block) { return !block.live || block.small; });
  std::stable_sort(blocks.begin(), blocks.end(), [](const BlockInfo& a, const BlockInfo& b) {
    if ((a.stays != nullptr) != (b.stays != nullptr)) return a.stays != nullptr;
    return a.bytes > b.bytes;
  });
  out += fmt::format("<h2>{} blocks of 1 MiB and more{}</h2>\n<table>\n<tr><th>stays</th>"
                     "<th class=\"n\">size</th><th class=\"n\">asked for</th><th>is</th>"
                     "<th>at</th></tr>\n",
                     blocks.size(),
                     blocks.size() > rows_most
                         ? fmt::format(", the first {}: blocks that stay, then the largest",
                                       rows_most)
                         : "");
  blocks.resize(std::min(blocks.size(), rows_most));
  for (const BlockInfo& block : blocks)
    out += fmt::format("<tr><td>{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td><td>{}</td>"
                       "<td>{}</td></tr>\n",
                       html_text(block.stays ? block.stays : ""), format_size(block.bytes),
                       format_size(block.requested_bytes), block.state, fmt::ptr(block.base));
  out += "</table>\n";
}
}  // namespace

std::string oom_page(const OutOfMemoryThen& then) {
  std::array<char, 64> at{};
  const std::time_t seconds = then.at_s;
  std::tm local{};
  if (::localtime_r(&seconds, &local))
    (void)std::strftime(at.data(), at.size(), "%Y-%m-%d %H:%M:%S", &local);
  std::string out = fmt::format(
      "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n"
      "<title>out of memory: {0}</title>\n<style>{1}</style></head><body>\n"
      "<h1>Out of memory</h1>\n<p class=\"soft\">{0}<br>process {2}, {3}, refusal {4}</p>\n"
      "<p class=\"said\">{5}</p>\n",
      html_text(then.command), style, then.process, at.data(), then.number, html_text(then.words));
  for (const DeviceThen& device : then.devices) {
    const EngineStats& s = device.stats;
    out += fmt::format("<section><h2>GPU {}: {} of a budget of {} held</h2>\n", s.device,
                       format_size(s.device_bytes), format_size(s.budget_bytes));
    add_budget(out, s);
    for (const auto* lines : {&s.trouble, &s.notices})
      for (const std::string& line : *lines)
        out += fmt::format("<p class=\"said\">{}</p>\n", html_text(line));
    out += "</section>\n<section>";
    add_blocks(out, device.blocks);
    out += "</section>\n";
  }
  return out + "</body></html>\n";
}

void OomPages::write(const std::string& path, std::string_view words,
                     const std::function<std::vector<DeviceThen>()>& devices) {
  constexpr uint64_t part = 20;
  const uint64_t number = ++refusals_, begin = clock_.now_ns();
  if (begin < next_ns_.load() || writing_.exchange(true)) return;
  const std::unique_ptr<std::atomic<bool>, void (*)(std::atomic<bool>*)> written(
      &writing_, [](std::atomic<bool>* writing) { *writing = false; });
  const Result<void> done = replace_file(
      path, oom_page({command_line(::getpid()), ::getpid(), std::time(nullptr), number, words, devices()}));
  if (!(done ? told_of_page_ : told_of_failure_).exchange(true))
    say(done ? "firn: out of memory: " + path + " shows what stayed on the device, and why"
             : "firn: " + done.error().text + " (firn_oom_page)");
  const uint64_t now = clock_.now_ns();
  next_ns_ = now + part * (now - begin);
}

}  // namespace firn
