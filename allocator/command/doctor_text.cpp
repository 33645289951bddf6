// Locks: none.
#include "allocator/command/doctor_text.h"

#include <fmt/format.h>

#include "allocator/runtime/config.h"

namespace firn::command {
namespace {

using Json = nlohmann::ordered_json;

std::string size(const Json& bytes) {
  return bytes.is_null() ? "no limit" : format_size(bytes.get<uint64_t>());
}

std::string text_of(const Json& value) { return value.get<std::string>(); }

std::string rate(const Json& bytes_s) {
  const double value = bytes_s.get<double>();
  return value > 0 ? fmt::format("{:.2f} GB/s", value / 1e9) : "not measured";
}

void line(std::string& out, std::string_view name, const std::string& text) {
  out += fmt::format("{:<14} {}\n", name, text);
}

void add_driver(std::string& out, const Json& driver) {
  if (!driver["usable"].get<bool>()) {
    line(out, "driver", "none usable: " + text_of(driver["why"]));
    return;
  }
  const int version = driver["version"].get<int>();
  line(out, "driver",
       fmt::format("{}, CUDA {}.{}{}", text_of(driver["library"]), version / 1000,
                   version % 1000 / 10, driver["software"].get<bool>() ? ", in software" : ""));
  for (const Json& device : driver["devices"])
    line(out, "  device",
         fmt::format("{}, {}", text_of(device["name"]), size(device["memory_bytes"])));
}

void add_dirs(std::string& out, const Json& dirs) {
  if (dirs.empty()) line(out, "directories", "none named (--dir, firn_dir)");
  for (const Json& dir : dirs) {
    if (!dir.contains("filesystem")) {
      line(out, "directory", text_of(dir["dir"]) + ": refused: " + text_of(dir["why"]));
      continue;
    }
    line(out, "directory",
         fmt::format("{}: {}, {} free{}", text_of(dir["dir"]), text_of(dir["filesystem"]),
                     size(dir["free_bytes"]), dir["usable"].get<bool>() ? "" : ", not usable"));
    line(out, "  O_DIRECT", dir["o_direct"].get<bool>() ? "works" : "does not work");
    line(out, "  store", text_of(dir["store"]));
    line(out, "  write", rate(dir["write_bytes_s"]));
    line(out, "  read", rate(dir["read_bytes_s"]));
    if (!text_of(dir["why"]).empty()) line(out, "  note", text_of(dir["why"]));
  }
}

void add_gpudirect(std::string& out, const Json& gpudirect) {
  const Json& help = gpudirect["would_help"];
  line(out, "GPUDirect",
       std::string("Storage is not used; ") +
           (help.is_null()       ? "whether it would be faster is unknown: "
            : help.get<bool>()   ? "it may be faster here: "
                                 : "it would not be faster: ") +
           text_of(gpudirect["why"]));
}

void add_machine(std::string& out, const Json& report) {
  const Json& io_uring = report["io_uring"];
  line(out, "io_uring",
       io_uring["works"].get<bool>() ? "works" : "refused: " + text_of(io_uring["why"]));
  const Json& pages = report["hugepages"];
  line(out, "huge pages",
       fmt::format("hugetlb {} ({} free), transparent {}; staging gets {}",
                   size(pages["hugetlb_bytes"]), size(pages["hugetlb_free_bytes"]),
                   text_of(pages["transparent"]), text_of(pages["staging"])));
  const Json& memlock = report["memlock"];
  line(out, "memlock",
       size(memlock["limit_bytes"]) +
           (memlock["binding"].get<bool>() ? "" : " (not enforced: CAP_IPC_LOCK)"));
  const Json& machine = report["machine"];
  line(out, "memory",
       fmt::format("{}, {} available, cgroup {}", size(machine["memory_bytes"]),
                   size(machine["available_bytes"]), size(machine["cgroup_bytes"])));
}

}  // namespace

std::string doctor_text(const Json& report) {
  std::string out;
  line(out, "firn", text_of(report["firn"]));
  add_driver(out, report["driver"]);
  const Json& software = report["software_gpu"];
  line(out, "software GPU",
       software["usable"].get<bool>() ? text_of(software["driver"]) : text_of(software["why"]));
  const Json& torch = report["torch"];
  const std::string version = text_of(torch["version"]);
  line(out, "torch",
       torch["usable"].get<bool>()
           ? version + ", fits"
           : version + (version.empty() ? "" : ": ") + text_of(torch["why"]));
  const Json& preload = report["preload"];
  line(out, "other programs",
       preload["usable"].get<bool>() ? text_of(preload["library"]) : text_of(preload["why"]));
  add_machine(out, report);
  add_dirs(out, report["dirs"]);
  add_gpudirect(out, report["gpudirect"]);

  const Json& use = report["use"];
  out += "\nFirn will use\n";
  line(out, "  device", text_of(use["device"]));
  line(out, "  store", text_of(use["store"]));
  line(out, "  staging", text_of(use["staging"]));
  if (!use["why_not_better"].empty()) out += "\nwhy not better\n";
  for (const Json& why : use["why_not_better"]) out += "  " + text_of(why) + "\n";

  out += fmt::format("\n{:<12} {:<16} {:<12} {}\n", "knob", "value", "from", "meaning");
  for (const Json& knob : report["knobs"]) {
    const std::string value = text_of(knob["value"]);
    out +=
        fmt::format("{:<12} {:<16} {:<12} {}\n", text_of(knob["name"]), value.empty() ? "-" : value,
                    text_of(knob["source"]), text_of(knob["meaning"]));
  }
  out += "\nSet each as firn_KNOB:VALUE in PYTORCH_CUDA_ALLOC_CONF or as the variable FIRN_KNOB.\n";
  return out;
}

std::string knobs_markdown() {
  std::string out =
      "| knob | unit | default | meaning | when to change it |\n|---|---|---|---|---|\n";
  for (const Knob& knob : knobs()) {
    std::string unit = knob.unit;  // "age|lifetime" would end the cell
    for (size_t at = 0; (at = unit.find('|', at)) != std::string::npos; at += 4)
      unit.replace(at, 1, " or ");
    out += fmt::format("| `{}` | {} | {} | {} | {} |\n", knob.name, unit, knob.fallback,
                       knob.meaning, knob.when);
  }
  return out;
}

}  // namespace firn::command
