// Locks: none.
#include "allocator/command/paths.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <string_view>

namespace firn::command {
namespace fs = std::filesystem;
namespace {

// Paths in the build tree of the files of the package's lib/.
constexpr const char* build_paths[][2] = {
    {"libfirn_preload.so", "allocator/preload/libfirn_preload.so"},
    {"software/libcuda.so.1", "backing/gpu/software/libcuda.so.1"},
    {"software/libcudart.so.13", "backing/gpu/software/cudart/libcudart.so.13"},
    {"software/libnccl.so.2", "backing/gpu/software/nccl/libnccl.so.2"},
};
// The build tree's counterpart of the package's lib/, for libraries built on torch.
constexpr const char* build_torch_folder = "pytorch_plugin";

fs::path executable_folder() {
  std::error_code error;
  const fs::path path = fs::read_symlink("/proc/self/exe", error);
  return error ? fs::path() : path.parent_path();
}

bool is_file(const fs::path& path) {
  std::error_code error;
  return fs::is_regular_file(path, error);
}

// <prefix>/lib/python3*/{site,dist}-packages, in a fixed order.
std::vector<fs::path> package_folders(const fs::path& prefix) {
  std::vector<fs::path> folders;
  std::error_code error;
  for (const char* lib : {"lib", "lib64", "local/lib"}) {
    for (fs::directory_iterator it(prefix / lib, error), end; !error && it != end;
         it.increment(error)) {
      if (!it->path().filename().string().starts_with("python3")) continue;
      for (const char* name : {"site-packages", "dist-packages"}) {
        std::error_code missing;
        if (fs::is_directory(it->path() / name, missing)) folders.push_back(it->path() / name);
      }
    }
    error.clear();
  }
  std::sort(folders.begin(), folders.end());
  return folders;
}

// The environment of an interpreter: a virtual environment's python is a link, so its own folder
// counts, not where the link leads; Debian's python3 is its prefix's bin/python3.
std::vector<fs::path> package_folders_of(const std::string& python) {
  const std::optional<fs::path> path = find_in_path(python);
  if (!path) return {};
  std::error_code error;
  return package_folders(fs::absolute(*path, error).parent_path().parent_path());
}

// The text in quotes after `name = ` in a Python file; empty when there is none.
std::string assigned_text(const fs::path& file, const std::string& name) {
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) {
    if (!line.starts_with(name)) continue;
    const size_t open = line.find_first_of("'\"");
    if (open == std::string::npos) continue;
    const size_t close = line.find(line[open], open + 1);
    if (close != std::string::npos) return line.substr(open + 1, close - open - 1);
  }
  return {};
}

// "2.11 and 2.12": the releases of torch that a folder has a plugin for.
std::string minors_in(const fs::path& folder) {
  constexpr std::string_view before = "libfirn_torch-", after = ".so";
  std::vector<std::string> minors;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    if (name.starts_with(before) && name.ends_with(after))
      minors.push_back(
          name.substr(before.size(), name.size() - before.size() - after.size()));
  }
  std::sort(minors.begin(), minors.end());
  std::string words;
  for (const std::string& minor : minors) words += (words.empty() ? "" : " and ") + minor;
  return words;
}

std::string minor_of(const std::string& version) {
  const size_t dot = version.find('.');
  return dot == std::string::npos ? version : version.substr(0, version.find('.', dot + 1));
}

}  // namespace

std::vector<fs::path> library_paths(const std::string& name) {
  std::vector<fs::path> paths;
  if (const char* folder = ::secure_getenv("FIRN_LIB"); folder != nullptr && *folder != '\0')
    paths.push_back(fs::path(folder) / name);
  const auto add_build = [&](const fs::path& build) {
    for (const auto& [packaged, built] : build_paths)
      if (name == packaged) paths.push_back(build / built);
    if (name.starts_with("libfirn_torch")) paths.push_back(build / build_torch_folder / name);
  };
  if (const char* build = ::secure_getenv("FIRN_BUILD"); build != nullptr && *build != '\0')
    add_build(build);
  const fs::path here = executable_folder();
  for (const fs::path& folder : package_folders(here.parent_path()))
    paths.push_back(folder / "firn" / "lib" / name);
  if (name == "libfirn_preload.so")  // installed without Python
    for (const char* lib : {"lib", "lib64", "lib/x86_64-linux-gnu", "lib/aarch64-linux-gnu"})
      paths.push_back(here.parent_path() / lib / name);
  add_build(here.parent_path().parent_path());
  return paths;
}

std::optional<fs::path> find_library(const std::string& name) {
  for (const fs::path& path : library_paths(name))
    if (is_file(path)) return path;
  return std::nullopt;
}

std::optional<fs::path> find_in_path(const std::string& command) {
  if (command.empty()) return std::nullopt;
  if (command.find('/') != std::string::npos) {
    if (is_file(command)) return command;
    return std::nullopt;
  }
  const char* variable = ::getenv("PATH");
  const std::string path = variable == nullptr ? "/usr/bin:/bin" : variable;
  for (size_t begin = 0; begin <= path.size();) {
    const size_t end = std::min(path.find(':', begin), path.size());
    const fs::path folder =
        end == begin ? fs::path(".") : fs::path(path.substr(begin, end - begin));
    const fs::path candidate = folder / command;
    if (is_file(candidate) && ::access(candidate.c_str(), X_OK) == 0) return candidate;
    begin = end + 1;
  }
  return std::nullopt;
}

std::optional<fs::path> find_module(const std::string& name) {
  const fs::path here = executable_folder();
  std::vector<fs::path> paths;
  for (const fs::path& folder : package_folders(here.parent_path()))
    paths.push_back(folder / "firn" / name);
  paths.push_back(here.parent_path().parent_path().parent_path() / "pytorch_plugin" / "firn" /
                   name);
  for (const fs::path& path : paths)
    if (is_file(path)) return path;
  return std::nullopt;
}

std::optional<fs::path> find_python() {
  const fs::path here = executable_folder();
  for (const fs::path& path : {here / "python3", here.parent_path().parent_path().parent_path() /
                                                      ".venv" / "bin" / "python3"})
    if (is_file(path)) return path;
  if (const char* chosen = ::secure_getenv("FIRN_PYTHON"); chosen != nullptr && *chosen != '\0')
    return find_in_path(chosen);
  return find_in_path("python3");
}

TorchReport examine_torch(const std::string& python) {
  TorchReport report;
  std::vector<fs::path> folders;
  const auto add = [&](const std::vector<fs::path>& more) {
    folders.insert(folders.end(), more.begin(), more.end());
  };
  if (!python.empty()) {
    add(package_folders_of(python));
  } else {
    const fs::path here = executable_folder();
    add(package_folders(here.parent_path()));
    // The build tree's neighbour, for an executable that was not installed.
    add(package_folders(here.parent_path().parent_path().parent_path() / ".venv"));
    if (const char* chosen = ::secure_getenv("FIRN_PYTHON"); chosen != nullptr && *chosen != '\0')
      add(package_folders_of(chosen));
    add(package_folders_of("python3"));
  }
  for (const fs::path& folder : folders) {
    const std::string version = assigned_text(folder / "torch" / "version.py", "__version__");
    if (report.site_packages.empty()) report.site_packages = folder;
    if (version.empty()) continue;
    report.site_packages = folder;
    report.version = version;
    report.package = is_file(folder / "firn" / "__init__.py");
    report.built_for = minors_in(folder / "firn" / "lib");
    break;
  }
  const std::string minor = minor_of(report.version);
  report.plugin = find_library("libfirn_torch-" + minor + ".so").has_value();
  report.operators = find_library("libfirn_torch_ops-" + minor + ".so").has_value();
  if (report.version.empty())
    report.why = "no torch found";
  else if (!report.package)
    report.why = "the Python package firn is not installed beside torch";
  else if (!report.plugin && report.built_for.empty())
    report.why = "libfirn_torch.so not found";
  else if (!report.plugin)
    report.why = "built for torch " + report.built_for + ", found " + report.version;
  return report;
}

}  // namespace firn::command
