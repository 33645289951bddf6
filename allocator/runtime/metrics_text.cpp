#include "allocator/runtime/metrics_text.h"

#include <fmt/format.h>

#include <string_view>
#include <vector>

#include "allocator/base/json_text.h"

namespace firn {

namespace {

using Json = nlohmann::ordered_json;

/// A number of the document, with its names there and here.
struct Metric {
  const char* key;
  const char* name;  // with its unit at the end, without "_total"
  bool counter;
  const char* help;
};

constexpr Metric of_devices[] = {
    {"budget_bytes", "budget_bytes", false, "Limit on the GPU memory that Firn holds."},
    {"device_bytes", "device_bytes", false, "GPU memory that Firn holds."},
    {"peak_device_bytes", "peak_device_bytes", false, "Peak GPU memory that Firn held."},
    {"allocated_bytes", "allocated_bytes", false,
     "Memory that the program has allocated, in all tiers."},
    {"peak_allocated_bytes", "peak_allocated_bytes", false,
     "Peak memory that the program had allocated."},
    {"resident_bytes", "resident_bytes", false, "Allocated memory on the GPU."},
    {"hosted_bytes", "hosted_bytes", false, "Allocated memory in host memory."},
    {"nvme_bytes", "nvme_bytes", false, "Allocated memory in spill files."},
    {"in_flight_bytes", "in_flight_bytes", false, "Allocated memory in flight between tiers."},
    {"rounding_bytes", "rounding_bytes", false, "GPU memory lost to rounding."},
    {"gap_bytes", "gap_bytes", false, "GPU memory in gaps of shared frames."},
    {"spilled_bytes", "spilled_bytes", true, "Bytes copied out of the GPU."},
    {"faulted_bytes", "faulted_bytes", true,
     "Bytes copied back because a kernel was about to use them."},
    {"prefetched_bytes", "prefetched_bytes", true, "Bytes copied back ahead of their use."},
    {"forwarded_bytes", "forwarded_bytes", true, "Bytes used again while they were leaving."},
    {"clean_dropped_bytes", "clean_dropped_bytes", true,
     "Bytes that left without a copy because a valid one existed."},
    {"dropped_bytes", "dropped_bytes", true, "Bytes that left without a copy, to be made again."},
    {"remakes", "remakes", true, "Blocks that were made again."},
    {"remade_bytes", "remade_bytes", true, "Bytes that were made again."},
    {"remade_s", "remade_seconds", true, "Time that the GPU takes to make blocks again."},
    {"host_uses", "host_uses", true, "Uses of blocks by the CPU, in host memory."},
    {"host_use_bytes", "host_use_bytes", true, "Bytes that the CPU used in host memory."},
    {"zero_copy_bytes", "zero_copy_bytes", true,
     "Bytes that kernels used in host memory, over the link."},
    {"stall_s", "stall_seconds", true, "Time that the program waited for memory."},
    {"plan_s", "plan_seconds", true, "CPU time that Firn spent on planning."},
    {"touches", "touches", true, "Uses of blocks that Firn saw."},
    {"evictions", "evictions", true, "Blocks that left the GPU."},
    {"faults", "faults", true, "Blocks that were away when they were used."},
    {"stalls", "stalls", true, "Times that the program waited for memory."},
    {"out_of_memory", "out_of_memory", true, "Allocations that Firn refused."},
    {"lost_blocks", "lost_blocks", true, "Blocks whose bytes cannot be read back."},
    {"measured_host_out_bytes_s", "host_out_bytes_per_second", false,
     "Measured bandwidth from the GPU to host memory."},
    {"measured_host_in_bytes_s", "host_in_bytes_per_second", false,
     "Measured bandwidth from host memory to the GPU."},
    {"measured_store_write_bytes_s", "store_write_bytes_per_second", false,
     "Measured bandwidth to spill files."},
    {"measured_store_read_bytes_s", "store_read_bytes_per_second", false,
     "Measured bandwidth from spill files."},
    {"watching", "watching", false, "1 while Firn watches operators."},
    {"period_found", "period_found", false, "1 while Firn knows the repeating iteration."},
};
constexpr Metric pinned{"bytes", "pinned_bytes", false, "GPU memory that cannot leave, by reason."};
constexpr Metric of_host[] = {
    {"budget_bytes", "host_budget_bytes", false,
     "Limit on the pinned host memory of this process."},
    {"sharers", "host_sharers", false, "Processes that share host memory."},
};
constexpr Metric of_store[] = {
    {"written_bytes", "store_written_bytes", true, "Bytes written to spill files."},
    {"read_bytes", "store_read_bytes", true, "Bytes read from spill files."},
    {"reread", "store_reread", true, "Reads repeated because of a wrong checksum."},
    {"corrupt", "store_corrupt", true, "Reads whose checksum stayed wrong."},
    {"quarantined_bytes", "store_quarantined_bytes", false,
     "Bytes of spill files that Firn has retired."},
};
constexpr Metric of_directory{"written_bytes", "directory_written_bytes", true,
                              "Bytes written to spill files in the directory."};

std::string escaped(std::string_view value) {
  std::string out;
  for (char letter : value) {
    if (letter == '\\' || letter == '"') out += '\\';
    if (letter == '\n')
      out += "\\n";
    else
      out += letter;
  }
  return out;
}

std::string label(const char* name, std::string_view value) {
  return fmt::format("{}=\"{}\"", name, escaped(value));
}

const Json& part(const Json& from, const char* key) {
  static const Json none;
  const auto found = from.find(key);
  return found != from.end() ? *found : none;
}

class Text {
 public:
  explicit Text(const Json& document) {
    const Json& pid = part(document, "pid");
    process_ = label("pid", pid.is_number() ? fmt::to_string(pid.get<int64_t>()) : "");
  }

  /// Samples of one metric belong together: `add` gives them to `sample`.
  template <class Add>
  void family(const Metric& metric, Add add) {
    std::string samples;
    add([&](const Json& from, const std::vector<std::string>& labels) {
      const Json& value = part(from, metric.key);
      if (!value.is_number() && !value.is_boolean()) return;
      samples +=
          fmt::format("firn_{}{}{{{}", metric.name, metric.counter ? "_total" : "", process_);
      for (const std::string& each : labels) samples += "," + each;
      samples += fmt::format("}} {}\n", value.is_boolean() ? fmt::to_string(int{value.get<bool>()})
                                                           : json_text(value));
    });
    if (samples.empty()) return;
    text_ += fmt::format("# TYPE firn_{} {}\n", metric.name, metric.counter ? "counter" : "gauge");
    const std::string_view name = metric.name;
    for (const std::string_view unit : {"bytes", "seconds"})
      if (name.ends_with("_" + std::string(unit)))
        text_ += fmt::format("# UNIT firn_{} {}\n", metric.name, unit);
    text_ += fmt::format("# HELP firn_{} {}\n", metric.name, metric.help) + samples;
  }

  std::string end() && { return std::move(text_) + "# EOF\n"; }

 private:
  std::string process_, text_;
};

std::string device_label(const Json& device) {
  const Json& number = part(device, "device");
  return label("device", number.is_number() ? fmt::to_string(number.get<int64_t>()) : "");
}

}  // namespace

std::string metrics_text(const Json& document) {
  Text text(document);
  const Json& devices = part(document, "devices");
  for (const Metric& metric : of_devices)
    text.family(metric, [&](const auto& sample) {
      for (const Json& device : devices) sample(device, {device_label(device)});
    });
  text.family(pinned, [&](const auto& sample) {
    for (const Json& device : devices)
      for (const Json& each : part(device, "pinned"))
        if (part(each, "reason").is_string())
          sample(each, {device_label(device), label("reason", each["reason"].get<std::string>())});
  });
  for (const Metric& metric : of_host)
    text.family(metric, [&](const auto& sample) { sample(part(document, "host"), {}); });
  const Json& store = part(document, "store");
  for (const Metric& metric : of_store)
    text.family(metric, [&](const auto& sample) { sample(store, {}); });
  text.family(of_directory, [&](const auto& sample) {
    for (const Json& each : part(store, "measured"))
      if (part(each, "dir").is_string())
        sample(each, {label("directory", each["dir"].get<std::string>())});
  });
  return std::move(text).end();
}

}  // namespace firn
