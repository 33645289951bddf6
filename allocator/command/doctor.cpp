// Every finding is gathered into one JSON document; the text is made from that document.
// Locks: none.
#include "allocator/command/doctor.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "allocator/base/json_text.h"
#include "allocator/command/coverage.h"
#include "allocator/command/devices.h"
#include "allocator/command/direct_storage.h"
#include "allocator/command/doctor_text.h"
#include "allocator/command/machine.h"
#include "allocator/command/output.h"
#include "allocator/command/paths.h"
#include "allocator/command/report.h"
#include "allocator/runtime/config.h"
#include "firn/store.h"

namespace firn::command {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t measured_bytes = 256u << 20;
constexpr size_t probe_bytes = 2u << 20;  // of staging, to see which pages it gets

Json limit(uint64_t bytes) { return bytes == UINT64_MAX ? Json(nullptr) : Json(bytes); }

Json describe_driver(const DriverReport& driver) {
  Json devices = Json::array();
  for (const DeviceReport& device : driver.devices)
    devices.push_back({{"name", device.name},
                       {"memory_bytes", device.memory_bytes},
                       {"virtual_memory", device.virtual_memory}});
  return {{"library", driver.library}, {"software", driver.software}, {"version", driver.version},
          {"usable", driver.usable()}, {"why", one_line(driver.why)}, {"devices", devices}};
}

Json describe_software_gpu() {
  const auto driver = find_library("software/libcuda.so.1");
  const auto runtime = find_library("software/libcudart.so.13");
  Json report = {{"driver", driver ? driver->string() : ""},
                 {"runtime", runtime ? runtime->string() : ""}};
  report["usable"] = driver && runtime;
  report["why"] = driver && runtime ? ""
                  : driver          ? "libcudart.so.13 not found"
                                    : "libcuda.so.1 not found";
  return report;
}

// For programs without PyTorch: the library in front of the driver, and the one behind it.
Json describe_preload() {
  const auto library = find_library("libfirn_preload.so");
  std::error_code error;
  const std::string path = library ? library->string() : "";
  std::string why;
  if (!library)
    why = "libfirn_preload.so not found";
  else if (!std::filesystem::is_regular_file(library->parent_path() / "libfirn_behind.so", error))
    why = "libfirn_behind.so is not beside " + path;
  else if (path.find_first_of(" :\t\n") != std::string::npos)
    why = "LD_PRELOAD cannot hold the path " + quote_word(path);
  return {{"library", path}, {"usable", why.empty()}, {"why", why}};
}

Json describe_torch(const TorchReport& torch) {
  return {{"usable", torch.why.empty()},
          {"version", torch.version},
          {"built_for", torch.built_for},
          {"site_packages", torch.site_packages},
          {"plugin", torch.plugin},
          {"software_operators", torch.operators},
          {"why", torch.why}};
}

Json describe_machine(const MachineReport& machine) {
  return {{"kernel", machine.kernel},
          {"memory_bytes", machine.memory_bytes},
          {"available_bytes", machine.available_bytes},
          {"cgroup_bytes", limit(machine.cgroup_bytes)},
          {"file_size_limit_bytes", limit(machine.file_size_bytes)},
          {"max_map_count", machine.map_count_max}};
}

// Really allocates staging, since the kernel may give other pages than the files say.
Json describe_hugepages(const MachineReport& machine) {
  Json report = {{"hugetlb_bytes", machine.hugetlb_bytes},
                 {"hugetlb_free_bytes", machine.hugetlb_free_bytes},
                 {"transparent", machine.transparent}};
  Result<StagingMemory> staging = StagingMemory::create(probe_bytes);
  report["staging"] = staging ? staging->pages() : "none";
  report["why"] = staging ? "" : one_line(staging.error().text);
  return report;
}

Json describe_dir(const std::string& dir) {
  std::fprintf(stderr, "firn: measuring %s ...\n", one_line(dir).c_str());
  Result<DirReport> report = examine_dir(dir, measured_bytes);
  if (!report) return {{"dir", dir}, {"usable", false}, {"why", one_line(report.error().text)}};
  return {{"dir", dir},
          {"usable", report->usable},
          {"filesystem", report->filesystem},
          {"o_direct", report->o_direct},
          {"free_bytes", report->free_bytes},
          {"write_bytes_s", report->write_bytes_s},
          {"read_bytes_s", report->read_bytes_s},
          {"store", report->store_kind},
          {"why", one_line(report->why)}};
}

// For the first device: the others of a machine have links of the same kind.
Json describe_gpudirect(const DriverReport& driver, const Json& dirs) {
  PciPath device;
  if (driver.usable() && !driver.software) device = pci_path_of(driver.devices[0].pci_address);
  std::vector<DiskSpeed> speeds;
  for (const Json& dir : dirs) {
    if (!dir["usable"].get<bool>()) continue;
    struct stat status {};
    if (::stat(dir["dir"].get_ref<const std::string&>().c_str(), &status) != 0) continue;
    speeds.push_back({disk_paths_of(status.st_dev), dir["read_bytes_s"].get<double>(),
                      dir["write_bytes_s"].get<double>()});
  }
  const DirectStorage found = judge_direct_storage(device, speeds);
  return {{"used", false},
          {"would_help", found.would_help ? Json(*found.would_help) : Json(nullptr)},
          {"shared_switch", found.shared_switch},
          {"link_bytes_s", found.link_bytes_s},
          {"uplink_bytes_s", found.uplink_bytes_s},
          {"disks_bytes_s", found.disks_bytes_s},
          {"host_memory_bytes_s", found.host_memory_bytes_s},
          {"driver_loaded", found.driver_loaded},
          {"why", found.why}};
}

// A name that is no directory is the caller's mistake; everything else is a finding.
Result<void> check_named_dirs(const std::vector<std::string>& dirs) {
  for (const std::string& dir : dirs) {
    Config scratch;
    if (Result<void> done = set_knob(scratch, "dir", dir, "--dir"); !done) return done;
    std::error_code error;
    if (std::filesystem::is_directory(dir, error)) continue;
    return invalid(fmt::format("--dir {}: {}", quote_word(dir),
                               error ? error.message() : "is not a directory"));
  }
  return {};
}

Json describe_knobs(const Config& config, const std::string& conf, bool dirs_named) {
  Json list = Json::array();
  const std::string words = "," + conf;
  for (const Knob& knob : knobs()) {
    const std::string variable = environment_name(knob.name);
    const char* value = ::getenv(variable.c_str());
    const char* source = "default";
    if (value != nullptr && *value != '\0') source = "environment";
    if (words.find(std::string(",firn_") + knob.name + ":") != std::string::npos) source = "words";
    if (dirs_named && std::string_view(knob.name) == "dir") source = "--dir";
    list.push_back({{"name", knob.name},
                    {"word", std::string("firn_") + knob.name},
                    {"environment", variable},
                    {"unit", knob.unit},
                    {"default", knob.fallback},
                    {"value", show_knob(config, knob.name)},
                    {"source", source},
                    {"meaning", knob.meaning},
                    {"when", knob.when}});
  }
  return list;
}

// Variables that look like knobs but are not: most likely misspelt.
Json unknown_variables() {
  constexpr std::string_view others[] = {"FIRN_DEVICE", "FIRN_STRICT", "FIRN_LIB", "FIRN_BUILD",
                                         "FIRN_CONF",   "FIRN_PYTHON", "FIRN_SEED"};
  Json list = Json::array();
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const std::string_view text = *variable;
    const std::string_view name = text.substr(0, text.find('='));
    if (!name.starts_with("FIRN_") || name.starts_with("FIRN_GPU_") ||
        name.starts_with("FIRN_TEST_") ||
        std::find(std::begin(others), std::end(others), name) != std::end(others))
      continue;
    const std::vector<Knob> all = knobs();
    if (std::none_of(all.begin(), all.end(),
                     [&](const Knob& knob) { return environment_name(knob.name) == name; }))
      list.push_back(one_line(name));
  }
  return list;
}

// Lists what Firn will use, and each reason why it is not something better.
Json conclude(const Json& report, const MachineReport& machine) {
  std::vector<std::string> why;
  Json use;
  const Json& driver = report["driver"];
  if (driver["usable"].get<bool>()) {
    use["device"] = driver["devices"][0]["name"];
  } else {
    const bool software = report["software_gpu"]["usable"].get<bool>();
    use["device"] = software ? "software GPU (firn run --device software)" : "none";
    why.push_back("no GPU: the driver is unusable (see driver, above)");
    if (!software)
      why.push_back("no software GPU: " + report["software_gpu"]["why"].get<std::string>());
  }
  use["pytorch"] = report["torch"]["usable"];
  if (!report["torch"]["usable"].get<bool>())
    why.push_back("PyTorch programs run without Firn: " +
                  report["torch"]["why"].get<std::string>());
  use["other_programs"] = report["preload"]["usable"];
  if (!report["preload"]["usable"].get<bool>())
    why.push_back("other CUDA programs run without Firn: " +
                  report["preload"]["why"].get<std::string>());
  use["store"] = "none: host memory is the only tier";
  if (report["dirs"].empty()) why.push_back("no SSD tier: name a directory (firn_dir, --dir)");
  for (const Json& dir : report["dirs"]) {
    if (dir["usable"].get<bool>()) use["store"] = dir["store"];
    if (const auto text = dir["why"].get<std::string>(); !text.empty())
      why.push_back(dir["dir"].get<std::string>() + ": " + text);
  }
  if (!report["io_uring"]["works"].get<bool>())
    why.push_back("no io_uring: " + report["io_uring"]["why"].get<std::string>());
  use["staging"] = report["hugepages"]["staging"];
  if (use["staging"] == "transparent")
    why.push_back(
        "staging uses transparent huge pages: no hugetlb pages are reserved "
        "(vm.nr_hugepages)");
  else if (use["staging"] != "hugetlb")
    why.push_back(
        "staging uses 4 KiB pages: set vm.nr_hugepages, or transparent_hugepage/enabled to "
        "madvise");
  if (!machine.memlock_ignored && machine.memlock_bytes < (1ull << 30))
    why.push_back("memlock limit " + format_size(machine.memlock_bytes) +
                  ": io_uring may refuse to register staging (ulimit -l)");
  for (const Json& name : report["unknown_variables"])
    why.push_back(name.get<std::string>() + " is set, but Firn has no such variable");
  use["why_not_better"] = why;
  return use;
}

int tell(const std::string& text) {
  const Result<void> done = print(text);
  return done ? status_ok : refuse("doctor: " + done.error().text, status_failed);
}

}  // namespace

CLI::App* add_doctor(CLI::App& app, DoctorOptions& options) {
  CLI::App* doctor =
      app.add_subcommand("doctor", "Show what this machine offers and what Firn will use of it");
  doctor
      ->add_option("--dir", options.dirs,
                   "directory to examine and measure [those of firn_dir]; may be repeated")
      ->type_name("DIR")
      ->allow_extra_args(false);
  doctor->add_flag("--json", options.json, "one JSON document on standard output");
  doctor->add_flag("--markdown", options.markdown)->group("");
  doctor
      ->add_option("--device", options.device, "with COMMAND: as in firn run [auto]")
      ->type_name("auto|software")
      ->envname("FIRN_DEVICE")
      ->check(CLI::IsMember({"auto", "software"}).description(""));
  doctor->add_option("--gpu-memory", options.gpu_memory, "with COMMAND: as in firn run")
      ->type_name("SIZE");
  doctor->footer(
      "Writes and reads 256MiB in each directory, and removes its files.\n"
      "firn doctor [--device ...] [--json] -- COMMAND...: runs COMMAND as firn run would (its\n"
      "output goes to standard error), then lists the driver's entries that it asked for, those\n"
      "that Firn saw, and those that bypassed Firn. The exit status is COMMAND's.");
  return doctor;
}

int doctor(const DoctorOptions& options, const std::vector<std::string>& command) {
  if (options.markdown) return tell(knobs_markdown());
  if (!command.empty()) {
    if (!options.dirs.empty()) return refuse("doctor: --dir and a COMMAND exclude each other");
    return report_coverage({options.device, options.gpu_memory, options.json}, command);
  }
  std::string conf;
  for (const char* name : {"FIRN_CONF", "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"}) {
    const char* text = ::getenv(name);
    if (text == nullptr) continue;
    const ConfWords words = split_conf(text);
    if (!words.firn.empty()) conf.append(conf.empty() ? "" : ",").append(words.firn);
  }
  Result<Config> config = parse_config(conf);
  if (!config) return refuse("doctor: " + config.error().text);

  if (Result<void> done = check_named_dirs(options.dirs); !done)
    return refuse("doctor: " + done.error().text);

  Json report = {{"firn", FIRN_VERSION}};
  const MachineReport machine = examine_machine();
  const DriverReport driver = examine_driver(config->driver);
  report["driver"] = describe_driver(driver);
  report["software_gpu"] = describe_software_gpu();
  report["preload"] = describe_preload();
  report["torch"] = describe_torch(examine_torch());
  const std::string trouble = io_uring_trouble();
  report["io_uring"] = {{"works", trouble.empty()}, {"why", one_line(trouble)}};
  report["hugepages"] = describe_hugepages(machine);
  report["memlock"] = {{"limit_bytes", limit(machine.memlock_bytes)},
                       {"binding", !machine.memlock_ignored}};
  report["machine"] = describe_machine(machine);
  report["dirs"] = Json::array();
  if (!options.dirs.empty()) config->dirs = options.dirs;
  for (const std::string& dir : config->dirs) report["dirs"].push_back(describe_dir(dir));
  report["gpudirect"] = describe_gpudirect(driver, report["dirs"]);
  report["unknown_variables"] = unknown_variables();
  report["use"] = conclude(report, machine);
  report["knobs"] = describe_knobs(*config, conf, !options.dirs.empty());

  // File names may hold bytes that are not UTF-8: these are replaced.
  const std::string text = options.json
                               ? json_text(report, 2) + "\n"
                               : doctor_text(report);
  return tell(text);
}

}  // namespace firn::command
