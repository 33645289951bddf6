#include "allocator/command/job_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <string_view>

#include "allocator/command/report.h"
#include "allocator/runtime/config.h"

namespace firn::command {
namespace {

using Json = nlohmann::ordered_json;

constexpr double rounding = 4 << 20;  // sizes of blocks include their rounding, or not

/// A number of the document, 0 where it has none: a job may be of another version.
double number(const Json& from, const char* key) {
  const auto found = from.find(key);
  return found != from.end() && found->is_number() ? found->get<double>() : 0;
}

/// Words of a job, which may hold anything, as a part of a line.
std::string words_of(const Json& value) {
  return value.is_string() ? one_line(value.get<std::string>()) : std::string();
}

std::string text(const Json& from, const char* key) {
  const auto found = from.find(key);
  return found != from.end() ? words_of(*found) : std::string();
}

const Json& list(const Json& from, const char* key) {
  static const Json none = Json::array();
  const auto found = from.find(key);
  return found != from.end() && found->is_array() ? *found : none;
}

/// At most one digit behind the point, and never more than eight characters.
std::string size(double bytes) {
  constexpr const char* units[] = {"", "KiB", "MiB", "GiB", "TiB"};
  size_t unit = 0;
  for (; bytes >= 1000 && unit + 1 < std::size(units); ++unit) bytes /= 1024;
  return unit == 0      ? fmt::format("{:.0f}", bytes)
         : bytes < 9.95 ? fmt::format("{:.1f}{}", bytes, units[unit])
                        : fmt::format("{:.0f}{}", bytes, units[unit]);
}

std::string size_of(const Json& from, const char* key) { return size(number(from, key)); }

void add_waits(std::string& out, const char* title, const Json& rows, size_t most) {
  if (rows.empty()) return;
  out += fmt::format("  waited, by {}:\n", title);
  for (size_t i = 0; i < rows.size() && i < most; ++i)
    out += fmt::format("    {:>9.3f} s {:>8.0f} x  {}\n", number(rows[i], "seconds"),
                       number(rows[i], "waits"), text(rows[i], "name"));
}

void add_pinned(std::string& out, const Json& device) {
  for (const Json& pin : list(device, "pinned"))
    out += fmt::format("    {:>9}  {}\n", size_of(pin, "bytes"), text(pin, "reason"));
}

/// The row of one device of a job.
struct Cell {
  const Json &job, &device, &store;
  bool first;  // the store is shown once for each job
};

struct Column {
  const char* head;
  size_t width;
  unsigned rank;  // the highest is left out first
  std::string (*cell)(const Cell& of);
};

const Column all_columns[] = {
    {"PID", 8, 0, [](const Cell& of) { return fmt::format("{:.0f}", number(of.job, "pid")); }},
    {"GPU", 3, 0,
     [](const Cell& of) { return fmt::format("{:.0f}", number(of.device, "device")); }},
    {"BUDGET", 8, 2, [](const Cell& of) { return size_of(of.device, "budget_bytes"); }},
    {"RESIDENT", 8, 0, [](const Cell& of) { return size_of(of.device, "resident_bytes"); }},
    {"HOSTED", 8, 1, [](const Cell& of) { return size_of(of.device, "hosted_bytes"); }},
    {"SPILLED", 8, 1, [](const Cell& of) { return size_of(of.device, "nvme_bytes"); }},
    {"FLIGHT", 8, 5, [](const Cell& of) { return size_of(of.device, "in_flight_bytes"); }},
    {"OUT/s", 9, 3, [](const Cell& of) { return size_of(of.device, "out_bytes_s"); }},
    {"IN/s", 9, 3, [](const Cell& of) { return size_of(of.device, "in_bytes_s"); }},
    {"AGAIN/s", 9, 6, [](const Cell& of) { return size_of(of.device, "again_bytes_s"); }},
    {"WRITE/s", 9, 4,
     [](const Cell& of) { return of.first ? size_of(of.store, "write_bytes_s") : ""; }},
    {"READ/s", 9, 4,
     [](const Cell& of) { return of.first ? size_of(of.store, "read_bytes_s") : ""; }},
    {"FAULTS/s", 8, 5,
     [](const Cell& of) { return fmt::format("{:.0f}", number(of.device, "faults_s")); }},
    {"STALL", 6, 0,
     [](const Cell& of) { return fmt::format("{:.0f}%", 100 * number(of.device, "stalled")); }},
};

std::string_view without_folder(std::string_view path) {
  const size_t slash = path.rfind('/');
  return slash == std::string_view::npos || slash + 1 == path.size() ? path
                                                                     : path.substr(slash + 1);
}

/// A short command that still distinguishes jobs within a column's width: only the names of an
/// interpreter and its script, then the rest as it is.
std::string short_command(std::string_view words) {
  const auto next = [&words] {
    const std::string_view word = words.substr(0, words.find(' '));
    words.remove_prefix(std::min(word.size() + 1, words.size()));
    return word;
  };
  std::string out(without_folder(next()));
  const bool interpreter = out.starts_with("python") || out == "sh" || out == "bash";
  for (bool script = interpreter; script && !words.empty();) {
    const std::string_view word = next();
    script = word.starts_with('-') && word != "-c" && word != "-m";
    out.append(" ").append(word.starts_with('-') ? word : without_folder(word));
    if (word == "-W" || word == "-X") out.append(" ").append(next());
  }
  return words.empty() ? out : out.append(" ").append(words);
}

constexpr size_t command_least = 16;  // characters of the command that are worth a column

std::vector<Column> columns_within(size_t width) {
  std::vector<Column> columns(std::begin(all_columns), std::end(all_columns));
  for (;;) {
    size_t wide = command_least;
    unsigned worst = 0;
    for (const Column& column : columns) {
      wide += column.width + 1;
      worst = std::max(worst, column.rank);
    }
    if (wide <= width || worst == 0) return columns;
    std::erase_if(columns, [&](const Column& column) { return column.rank == worst; });
  }
}

template <class CellOf>
std::string device_line(const std::vector<Column>& columns, CellOf&& cell) {
  std::string line;
  for (const Column& column : columns)
    line += fmt::format("{:>{}} ", cell(column), column.width);
  return line + " ";
}

constexpr size_t indented = 13;

/// Wraps words below a job, on as many lines as it takes: the helpful part often comes last.
void add_wrapped(std::vector<std::string>& lines, std::string_view words, size_t width) {
  const size_t room = std::max(width, indented + command_least) - indented;
  for (size_t indent = indented; !words.empty(); indent = indented + 2) {
    const size_t most = room - (indent - indented);
    size_t end = words.size();
    if (end > most) {
      end = words.rfind(' ', most);
      if (end == std::string_view::npos || end == 0) end = most;
    }
    lines.push_back(std::string(indent, ' ').append(words.substr(0, end)));
    words.remove_prefix(end);
    words.remove_prefix(std::min(words.find_first_not_of(' '), words.size()));
  }
}

/// Where both are known.
std::string iteration_times(const Json& remake) {
  const double before = number(remake, "iteration_before_s"), now = number(remake, "iteration_s");
  if (before <= 0 || now <= 0) return {};
  return fmt::format(": {:.3f} s, without it {:.3f} s", now, before);
}

}  // namespace

std::string stats_text(const Json& document) {
  std::string out = fmt::format("process {:.0f}\n", number(document, "pid"));
  for (const Json& d : list(document, "devices")) {
    out += fmt::format("device {:.0f}: budget {}, on the device {} (peak {}), allocated {} "
                       "(peak {})\n",
                       number(d, "device"), size_of(d, "budget_bytes"), size_of(d, "device_bytes"),
                       size_of(d, "peak_device_bytes"), size_of(d, "allocated_bytes"),
                       size_of(d, "peak_allocated_bytes"));
    out += fmt::format("  where    {} resident, {} in host memory, {} on NVMe, {} in flight\n",
                       size_of(d, "resident_bytes"), size_of(d, "hosted_bytes"),
                       size_of(d, "nvme_bytes"), size_of(d, "in_flight_bytes"));
    out += fmt::format("  moved    {} out, {} in on demand, {} in ahead\n",
                       size_of(d, "spilled_bytes"), size_of(d, "faulted_bytes"),
                       size_of(d, "prefetched_bytes"));
    const Json remake = d.value("remake", Json::object());
    if (number(d, "remakes") > 0 || number(remake, "results") > 0)
      out += fmt::format("  again    {} made again in {:.0f} blocks; of an iteration {:.0f} "
                         "results, {}{}\n",
                         size_of(d, "remade_bytes"), number(d, "remakes"),
                         number(remake, "results"), size_of(remake, "bytes"),
                         iteration_times(remake));
    out += fmt::format("  waited   {:.3f} s in {:.0f} waits; {:.0f} faults, {:.0f} evictions\n",
                       number(d, "stall_s"), number(d, "stalls"), number(d, "faults"),
                       number(d, "evictions"));
    if (!list(d, "pinned").empty()) out += "  stays on the device:\n";
    add_pinned(out, d);
    for (const Json& words : list(d, "trouble"))
      out += fmt::format("  trouble  {}\n", words_of(words));
    for (const Json& words : list(d, "notices"))
      out += fmt::format("  notice   {}\n", words_of(words));
  }
  const Json store = document.value("store", Json::object());
  out += fmt::format("store {}: {} written, {} read\n", text(store, "kind"),
                     size_of(store, "written_bytes"), size_of(store, "read_bytes"));
  const Json stalls = document.value("stalls", Json::object());
  add_waits(out, "operator", list(stalls, "operators"), 10);
  add_waits(out, "line of the program", list(stalls, "call_sites"), 10);
  return out;
}

std::string spill_text(const Json& document) {
  std::string out;
  for (const Json& d : list(document, "devices")) {
    const double before = number(d, "before_bytes"), after = number(d, "device_bytes");
    out += fmt::format("device {:.0f}: {} left the device, {} stay ({} in host memory, {} on "
                       "NVMe)\n",
                       number(d, "device"), size(before > after ? before - after : 0),
                       size(after), size_of(d, "hosted_bytes"), size_of(d, "nvme_bytes"));
    add_pinned(out, d);
    double known = 0;
    for (const Json& pin : list(d, "pinned")) known += number(pin, "bytes");
    if (after > known + rounding)
      out += fmt::format("    {:>9}  in use again, or kept by firn.no_spill()\n",
                         size(after - known));
    for (const Json& words : list(d, "trouble"))
      out += fmt::format("  trouble  {}\n", words_of(words));
    if (!d.value("watching", true))
      out += "  Firn has not watched operators so far, because memory was never short; it does "
             "from the\n  next allocation on. Then their tensors can leave: spill again after a "
             "step, or start the\n  job with FIRN_WATCH=0.\n";
  }
  return out.empty() ? "nothing was on a device\n" : out;
}

std::vector<std::string> top_lines(const Json& look, size_t sites, size_t width) {
  const std::vector<Column> columns = columns_within(width);
  std::vector<std::string> lines{device_line(columns, [](const Column& column) {
    return std::string(column.head);
  }) + "COMMAND"};
  for (const Json& job : list(look, "jobs")) {
    const std::string words = short_command(text(job, "command"));
    if (job.contains("error"))
      lines.push_back(
          fmt::format("{:>8.0f} {}: {}", number(job, "pid"), text(job, "error"), words));
    else if (list(job, "devices").empty())
      lines.push_back(fmt::format("{:>8.0f} {:>3} {}", number(job, "pid"), "-", words));
    const Json store = job.value("store", Json::object());
    bool first = true;
    for (const Json& d : list(job, "devices")) {
      lines.push_back(device_line(columns, [&](const Column& column) {
        return column.cell({job, d, store, first});
      }) + (first ? words : ""));
      first = false;
    }
    for (const Json& d : list(job, "devices"))
      for (const Json& words : list(d, "notices"))
        add_wrapped(lines, fmt::format("device {:.0f}: {}", number(d, "device"), words_of(words)),
                    width);
    const Json stalls = job.value("stalls", Json::object());
    const bool known = !list(stalls, "call_sites").empty();
    const Json& rows = list(stalls, known ? "call_sites" : "operators");
    for (size_t i = 0; i < rows.size() && i < sites; ++i)
      lines.push_back(fmt::format("{:>12} waited {:.3f} s in all, {:.0f} x: {}", "",
                                  number(rows[i], "seconds"), number(rows[i], "waits"),
                                  text(rows[i], "name")));
  }
  if (list(look, "jobs").empty()) lines.push_back("(no process of yours uses Firn's memory)");
  return lines;
}

}  // namespace firn::command
