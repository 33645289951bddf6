// Locks: none.
#include "allocator/command/checks.h"

#include <elf.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <vector>

#include "allocator/command/paths.h"
#include "allocator/command/report.h"

namespace firn::command {
namespace {

constexpr size_t scanned_bytes_max = 64u << 20;  // of a program's file

// Whether the dynamic loader starts it.
bool has_interpreter(const std::string& bytes) {
  Elf64_Ehdr header;
  if (bytes.size() < sizeof header) return true;
  std::memcpy(&header, bytes.data(), sizeof header);
  for (unsigned i = 0; i < header.e_phnum; ++i) {
    Elf64_Phdr part;
    const uint64_t at = header.e_phoff + uint64_t{i} * sizeof part;
    if (header.e_phentsize != sizeof part || at > bytes.size() - sizeof part) return true;
    std::memcpy(&part, bytes.data() + at, sizeof part);
    if (part.p_type == PT_INTERP) return true;
  }
  return false;
}

}  // namespace

Result<void> check_memory(const Config& config, uint64_t device_bytes,
                          const MachineReport& machine) {
  if (config.budget_bytes > device_bytes)
    return invalid(fmt::format(
        "budget {} exceeds the device's memory of {} (--budget, firn_budget)",
        format_size(config.budget_bytes), format_size(device_bytes)));
  if (config.host_bytes > machine.limit_bytes() && machine.limit_bytes() > 0)
    return invalid(fmt::format(
        "host {} exceeds this machine's memory of {}{} (--host, firn_host)",
        format_size(config.host_bytes), format_size(machine.limit_bytes()),
        machine.cgroup_bytes < machine.memory_bytes ? " (cgroup limit)" : ""));
  return {};
}

Result<void> check_dir(const std::string& dir, const Config& config) {
  StoreOptions options;
  options.dirs = {dir};
  options.allow_tmpfs = config.allow_tmpfs;
  options.grow_bytes = config.piece_bytes;
  if (config.store == "io_uring") options.kind = StoreOptions::Kind::io_uring;
  if (config.store == "threads") options.kind = StoreOptions::Kind::threads;
  // Only opening it gives a reliable answer; it starts no thread and leaves no file.
  Result<std::unique_ptr<Store>> store = open_store(options);
  if (!store) return store.error();
  Result<Slot> slot = (*store)->reserve(config.piece_bytes);
  if (!slot)
    return invalid(fmt::format(
        "directory {} has no room for one piece of {}: {} (--dir, firn_dir)", quote_word(dir),
        format_size(config.piece_bytes), slot.error().text));
  (*store)->discard(*slot);
  return {};
}

std::string past_firn(const std::string& command) {
  const std::optional<std::filesystem::path> path = find_in_path(command);
  if (!path) return {};
  std::ifstream in(*path, std::ios::binary);
  std::string bytes(scanned_bytes_max, '\0');
  in.read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  bytes.resize(static_cast<size_t>(in.gcount()));
  if (!bytes.starts_with("\x7f"
                         "ELF"))
    return {};
  const std::array marks = {"__cudaRegisterFatBinary", "libcudart.so", "libcuda.so"};
  if (std::none_of(marks.begin(), marks.end(), [&](const char* mark) {
        return bytes.find(mark) != std::string::npos;
      }))
    return {};
  const std::string begin = path->string() + " is a CUDA program ";
  const std::string end = ", which LD_PRELOAD cannot reach: its memory stays outside Firn";
  struct stat about {};
  if (::stat(path->c_str(), &about) == 0 && (about.st_mode & (S_ISUID | S_ISGID)))
    return begin + "with another user's rights" + end;
  if (!has_interpreter(bytes)) return begin + "that is statically linked" + end;
  return {};
}

}  // namespace firn::command
