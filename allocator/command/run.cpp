// Locks: none.
#include "allocator/command/run.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <utility>

#include "allocator/command/checks.h"
#include "allocator/command/devices.h"
#include "allocator/command/machine.h"
#include "allocator/command/output.h"
#include "allocator/command/paths.h"
#include "allocator/command/report.h"
#include "allocator/runtime/config.h"

namespace firn::command {
namespace {

constexpr const char* conf_variables[] = {"PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"};
// Where the Python package keeps Firn's words (an outer run's Python has moved them there). Set
// here too, so that a script that overwrites PYTORCH_CUDA_ALLOC_CONF keeps Firn.
constexpr const char* kept_variable = "FIRN_CONF";
constexpr const char* gpu_memory_default = "8GiB";  // the software GPU's own default

std::string variable(const char* name) {
  const char* value = ::getenv(name);
  return value == nullptr ? "" : value;
}

Result<void> set_variable(const std::string& name, const std::string& value) {
  if (::setenv(name.c_str(), value.c_str(), 1) == 0) return {};
  return make_error(Code::io, errno, "setting " + name + ": " + std::strerror(errno));
}

// The usage line of a command that is followed by another command line.
class RunFormatter : public CLI::Formatter {
 public:
  std::string make_usage(const CLI::App*, std::string) const override {
    return "Usage: firn run [OPTIONS] [--] COMMAND [ARGUMENT...]\n";
  }
};

// Option, knob and value of everything given on the command line.
struct Given {
  const char *option, *knob;
  std::string value;
};

Result<std::vector<Given>> given_knobs(const RunOptions& options) {
  std::vector<Given> given;
  const auto add = [&](const char* option, const char* knob,
                       const std::optional<std::string>& value) {
    if (value) given.push_back({option, knob, *value});
  };
  add("--budget", "budget", options.budget);
  add("--host", "host", options.host);
  add("--policy", "policy", options.policy);
  add("--watch", "watch", options.watch);
  if (options.remake) add("--remake", "remake", *options.remake == "on" ? "1" : "0");
  add("--relay", "relay", options.relay);
  if (options.adversarial) add("--adversarial", "test_adversarial", "1");
  if (options.verify) add("--verify", "verify", "all");
  if (options.guard) add("--guard", "test_guard", "1");
  if (options.poison) add("--poison", "test_poison", "1");
  std::string dirs;
  for (const std::string& dir : options.dirs) {
    if (dir.find(';') != std::string::npos)
      return invalid(fmt::format("--dir {}: a directory's name cannot hold ';'", quote_word(dir)));
    dirs.append(&dir == &options.dirs.front() ? "" : ";").append(dir);
  }
  if (!options.dirs.empty()) add("--dir", "dir", dirs);
  for (const auto& [option, knob, file] :
       {std::tuple{"--stats", "stats", options.stats}, {"--trace", "trace", options.trace}}) {
    if (!file) continue;
    // Absolute: COMMAND's process writes it, and may change its directory.
    Result<std::string> path = output_path(option, *file);
    if (!path) return path.error();
    add(option, knob, *path);
  }
  Config scratch;
  for (const Given& each : given) {
    Result<void> done = set_knob(scratch, each.knob, each.value, each.option);
    if (!done) return done.error();
  }
  return given;
}

// A value that a word of PYTORCH_CUDA_ALLOC_CONF can carry.
bool fits_a_word(const std::string& value) {
  return value.find_first_of(",[] \t\r\n") == std::string::npos;
}

// Sets PYTORCH_CUDA_ALLOC_CONF (the user's words, backend:firn, ours) and FIRN_*, and parses the
// result as COMMAND's process will.
Result<Config> set_configuration(const std::vector<Given>& given) {
  std::string firn = split_conf(variable(kept_variable)).firn, rest;
  const char* target = nullptr;  // the one that torch reads: the first that is set
  for (const char* name : conf_variables) {
    const std::string text = variable(name);
    if (text.empty()) continue;
    const ConfWords words = split_conf(text);
    if (const size_t at = words.rest.find("backend:"); at != std::string::npos)
      return invalid(fmt::format("{}: {}: firn run needs backend:firn", name,
                                 quote_word(words.rest.substr(at, words.rest.find(',', at) - at))));
    if (!words.firn.empty()) firn.append(firn.empty() ? "" : ",").append(words.firn);
    if (target == nullptr) {
      target = name;
      rest = words.rest.empty() ? "" : words.rest + ",";
    } else if (Result<void> done = set_variable(name, words.rest); !done) {
      return done.error();
    }
  }
  if (target == nullptr) target = conf_variables[1];
  for (const Given& each : given) {
    Result<void> done = set_variable(environment_name(each.knob), each.value);
    if (!done) return done.error();
    if (fits_a_word(each.value))
      firn.append(firn.empty() ? "" : ",")
          .append("firn_")
          .append(each.knob)
          .append(":")
          .append(each.value);
  }
  Result<Config> config = parse_config(firn);
  if (!config) return config;
  for (const Given& each : given) {
    Config alone;
    if (Result<void> done = set_knob(alone, each.knob, each.value, each.option); !done)
      return done.error();
    if (show_knob(alone, each.knob) != show_knob(*config, each.knob))
      return invalid(fmt::format(
          "{} {}: {} already sets firn_{}, and its words cannot hold this value", each.option,
          quote_word(each.value), target, each.knob));
  }
  const std::string words = "backend:firn" + (firn.empty() ? "" : "," + firn);
  for (const auto& [name, value] :
       {std::pair{target, rest + words}, std::pair{kept_variable, words}})
    if (Result<void> done = set_variable(name, value); !done) return done.error();
  return config;
}

// Frameworks that pool memory in a single block, or map it themselves, have a setting that makes
// each tensor an allocation of the driver's. The user's own setting wins.
Result<void> set_frameworks() {
  constexpr std::pair<const char*, const char*> variables[] = {
      {"XLA_PYTHON_CLIENT_ALLOCATOR", "cuda_async"},  // JAX
      {"XLA_PYTHON_CLIENT_PREALLOCATE", "false"},
      {"TF_GPU_ALLOCATOR", "cuda_malloc_async"}};   // TensorFlow
  for (const auto& [name, value] : variables)
    if (::getenv(name) == nullptr)
      if (Result<void> done = set_variable(name, value); !done) return done;
  return {};
}

constexpr const char* stand_in = "libfirn_preload.so";

// Puts "A:B:C" before LD_PRELOAD's value, except what an outer run has put there already.
Result<void> preload(const std::vector<std::string>& names) {
  const std::string before = variable("LD_PRELOAD");
  std::string list;
  for (const std::string& name : names) {
    const std::optional<std::filesystem::path> path = find_library(name);
    if (!path) {
      std::string text = name + " not found; searched";
      for (const std::filesystem::path& each : library_paths(name)) text += " " + each.string();
      return invalid(text + " (FIRN_LIB names another folder)");
    }
    if (path->string().find_first_of(" :\t\n") != std::string::npos)
      return invalid("LD_PRELOAD cannot hold the path " + quote_word(path->string()));
    if ((":" + before + ":").find(":" + path->string() + ":") == std::string::npos)
      list.append(list.empty() ? "" : ":").append(path->string());
  }
  if (list.empty()) return {};
  return set_variable("LD_PRELOAD", before.empty() ? list : list + ":" + before);
}

Result<uint64_t> set_software_device(const RunOptions& options) {
  const std::string inherited = variable("FIRN_GPU_MEMORY");
  const std::string from = options.gpu_memory ? "--gpu-memory" : "FIRN_GPU_MEMORY";
  const std::string memory =
      options.gpu_memory.value_or(inherited.empty() ? gpu_memory_default : inherited);
  Result<uint64_t> bytes = parse_size(memory);
  if (!bytes) return invalid(from + ": " + bytes.error().text);
  if (*bytes < (2u << 20)) return invalid(from + ": " + quote_word(memory) + " is less than 2MiB");
  const std::pair<const char*, std::string> variables[] = {
      {"FIRN_GPU_MEMORY", std::to_string(*bytes)}, {"FIRN_DEVICE", "software"}};
  for (const auto& [name, value] : variables)
    if (Result<void> done = set_variable(name, value); !done) return done.error();
  // The stand-in finds the software driver beside itself; a runtime that programs are linked with
  // has to be there before them.
  if (Result<void> done = preload({stand_in, "software/libcudart.so.13",
                                   "software/libnccl.so.2"});
      !done)
    return invalid("--device software: " + done.error().text);
  return bytes;
}

// The least device memory among the devices that COMMAND will see.
Result<uint64_t> set_device(const RunOptions& options, const Config& config) {
  if (options.device == "software") return set_software_device(options);
  const DriverReport driver = examine_driver(config.driver);
  if (!driver.usable())
    return invalid("--device auto: " + driver.why +
                   (driver.why.find("--device software") == std::string::npos
                        ? "; the software GPU needs no driver (--device software)"
                        : ""));
  if (options.gpu_memory && !driver.software)
    return invalid("--gpu-memory is the software GPU's capacity; it needs --device software");
  uint64_t least = UINT64_MAX;
  for (const DeviceReport& device : driver.devices) least = std::min(least, device.memory_bytes);
  // PyTorch programs can do without it.
  if (Result<void> done = preload({stand_in}); !done)
    warn("run: " + done.error().text + ": Firn works only in PyTorch programs");
  return least;
}

}  // namespace

CLI::App* add_run(CLI::App& app, RunOptions& options) {
  const auto meaning = [](const char* name) {
    for (const Knob& knob : knobs())
      if (std::string_view(knob.name) == name)
        return fmt::format("{} [{}]", knob.meaning, knob.fallback);
    return std::string();
  };
  CLI::App* run = app.add_subcommand("run", "Run COMMAND with Firn");
  run->formatter(std::make_shared<RunFormatter>());
  run->prefix_command();  // what follows the options is COMMAND
  run->add_option("--budget", options.budget, meaning("budget"))->type_name("SIZE");
  run->add_option("--dir", options.dirs, meaning("dir") + "; may be repeated")
      ->type_name("DIR")
      ->allow_extra_args(false);
  run->add_option("--host", options.host, meaning("host"))->type_name("SIZE");
  run->add_option("--policy", options.policy, meaning("policy"))->type_name("age|lifetime");
  run->add_option("--device", options.device,
                  "auto: the machine's GPU; software: a GPU in software, on the CPU [auto]")
      ->type_name("auto|software")
      ->envname("FIRN_DEVICE")
      ->check(CLI::IsMember({"auto", "software"}).description(""));
  run->add_option("--gpu-memory", options.gpu_memory,
                  fmt::format("the software GPU's capacity [{}]", gpu_memory_default))
      ->type_name("SIZE");
  run->add_option("--watch", options.watch, meaning("watch"))->type_name("FRACTION");
  run->add_option("--remake", options.remake,
                  meaning("remake") + " [on, where nothing runs unseen]")
      ->type_name("on|off")
      ->check(CLI::IsMember({"on", "off"}).description(""));
  run->add_option("--relay", options.relay, meaning("relay"))->type_name("MICRO-BATCHES");
  run->add_option("--trace", options.trace, meaning("trace"))->type_name("FILE");
  run->add_option("--stats", options.stats, meaning("stats"))->type_name("FILE");
  run->add_flag("--adversarial", options.adversarial)->group("");
  run->add_flag("--verify", options.verify)->group("");
  run->add_flag("--guard", options.guard)->group("");
  run->add_flag("--poison", options.poison)->group("");
  std::string footer =
      "COMMAND runs unchanged; the exit status is its own (2: firn refused an argument).\n"
      "PyTorch programs get Firn through the Python package, other CUDA programs through a\n"
      "library in front of the driver (LD_PRELOAD). Unless the user has set them, firn run sets\n"
      "XLA_PYTHON_CLIENT_ALLOCATOR=cuda_async, XLA_PYTHON_CLIENT_PREALLOCATE=false (JAX) and\n"
      "TF_GPU_ALLOCATOR=cuda_malloc_async (TensorFlow): each framework's own pool would be one\n"
      "block, which cannot leave in parts.\n\n"
      "Every setting, as a word firn_NAME:VALUE of PYTORCH_CUDA_ALLOC_CONF or as FIRN_NAME:\n";
  for (const Knob& knob : knobs())
    footer += fmt::format("  {:<12} {} [{}]\n", knob.name, knob.meaning, knob.fallback);
  run->footer(footer);
  return run;
}

int run(const RunOptions& options, const std::vector<std::string>& command) {
  const auto refuse_run = [](const std::string& text) { return refuse("run: " + text); };
  if (command.empty() || command.front().empty())
    return refuse_run(
        "no COMMAND; write it after the options, for example: firn run --budget 8GiB -- python "
        "train.py");
  Result<std::vector<Given>> given = given_knobs(options);
  if (!given) return refuse_run(given.error().text);
  Result<Config> config = set_configuration(*given);
  if (!config) return refuse_run(config.error().text);
  Result<uint64_t> device_bytes = set_device(options, *config);
  if (!device_bytes) return refuse_run(device_bytes.error().text);
  if (Result<void> done = check_memory(*config, *device_bytes, examine_machine()); !done)
    return refuse_run(done.error().text);
  for (const std::string& dir : config->dirs)
    if (Result<void> done = check_dir(dir, *config); !done) return refuse_run(done.error().text);
  if (Result<void> done = set_variable("FIRN_STRICT", "1"); !done)
    return refuse_run(done.error().text);
  if (Result<void> done = set_frameworks(); !done) return refuse_run(done.error().text);
  if (const std::string text = past_firn(command.front()); !text.empty()) warn("run: " + text);

  std::vector<char*> arguments;
  for (const std::string& word : command) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  ::execvp(arguments[0], arguments.data());
  const int error = errno;
  return refuse(fmt::format("run: {}: {}", quote_word(command.front()), std::strerror(error)),
                error == ENOENT ? status_not_found : status_not_executable);
}

}  // namespace firn::command
