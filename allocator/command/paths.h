// Finds Firn's own libraries and PyTorch, from the path of this executable, without importing or
// loading anything. Owns: nothing. Locks: none.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace firn::command {

/// One of the package's libraries ("software/libcuda.so.1", "libfirn_torch-2.11.so", ...), looked
/// for in $FIRN_LIB, in the build folder $FIRN_BUILD, in the package of the environment this
/// executable is installed in (<prefix>/lib/python3*/site-packages/firn/lib), and in the build
/// folder it was built in.
std::optional<std::filesystem::path> find_library(const std::string& name);

/// Where find_library looks for `name`, in order: for messages.
std::vector<std::filesystem::path> library_paths(const std::string& name);

/// A module of the Python package firn, as a file: in the package of this executable's environment,
/// or in the sources beside the build folder.
std::optional<std::filesystem::path> find_module(const std::string& name);

/// A Python interpreter: of the environment this executable is installed in, of the one beside the
/// build folder, $FIRN_PYTHON, then python3 in PATH.
std::optional<std::filesystem::path> find_python();

struct TorchReport {
  std::string site_packages;  // folder searched, empty when no Python environment was found
  std::string version;        // "2.11.0+cu130", empty when there is no torch
  std::string built_for;      // releases of torch that there are plugins for, empty when none
  bool plugin = false;        // libfirn_torch-*.so for it found
  bool operators = false;     // libfirn_torch_ops-*.so (software GPU) likewise
  bool package = false;       // the Python package firn is installed beside torch
  std::string why;            // why PyTorch programs will not get Firn; empty when they will
};
/// `python`: an interpreter's path, or empty: the environment of this executable, then
/// $FIRN_PYTHON, then python3 in PATH.
TorchReport examine_torch(const std::string& python = {});

/// `command` as execvp would find it.
std::optional<std::filesystem::path> find_in_path(const std::string& command);

}  // namespace firn::command
