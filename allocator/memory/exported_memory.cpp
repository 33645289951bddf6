#include "allocator/memory/exported_memory.h"

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>

#include <fmt/format.h>

#include "allocator/memory/exported_identity.h"
#include "allocator/memory/shared_frames.h"

namespace firn {

namespace {
constexpr char magic[8] = {'f', 'i', 'r', 'n', '-', 'm', '0', '3'};
constexpr uint32_t parts_most = 1u << 20;

struct Head {
  char magic[8];
  int32_t process;
  uint32_t parts;
  uint64_t started;  // when the process did: its number may be reused
  uint64_t serial;
  int64_t mark;      // descriptor of a file that holds this handle, whole
};

/// When the process started, in ticks since boot; 0: no such process.
uint64_t start_of(int process) {
  std::FILE* file = std::fopen(fmt::format("/proc/{}/stat", process).c_str(), "re");
  if (!file) return 0;
  char line[1024];
  const size_t read = std::fread(line, 1, sizeof line, file);
  std::fclose(file);
  return start_ticks({line, read});
}

/// Retries what the driver refuses: a failure would keep another process's memory, or addresses.
template <class Call>
bool insist(Call&& call) {
  for (int attempt = 0; attempt < 3; ++attempt)
    if (call() == CUDA_SUCCESS) return true;
  return false;
}
}  // namespace

uint64_t start_ticks(std::string_view stat) {
  // The 22nd field; the second is a name in parentheses that may hold anything.
  size_t at = stat.rfind(')');
  for (int field = 2; at != std::string_view::npos && field < 22; ++field)
    at = stat.find(' ', at + 1);
  if (at == std::string_view::npos) return 0;
  uint64_t ticks = 0;
  const auto [end, error] = std::from_chars(stat.data() + at + 1, stat.data() + stat.size(), ticks);
  return error == std::errc() ? ticks : 0;
}

ExportedMemory::ExportedMemory(uint64_t base) : base_(base) {
  static std::atomic<uint64_t> serials{0};
  serial_ = ++serials;
}

Result<std::shared_ptr<const ExportedMemory>> ExportedMemory::make(
    const Driver& driver, uint64_t base,
    const std::vector<std::pair<CUmemGenericAllocationHandle, uint64_t>>& frames) {
  std::shared_ptr<ExportedMemory> made(new ExportedMemory(base));
  for (const auto& [frame, bytes] : frames) {
    int fd = -1;
    const CUresult result = driver.mem_export_to_shareable_handle(
        &fd, frame, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
    if (result != CUDA_SUCCESS) return driver.error("cuMemExportToShareableHandle", result);
    made->parts_.push_back({Descriptor(fd), bytes});
  }
  made->mark_ = Descriptor(::memfd_create("firn-export", MFD_CLOEXEC));
  const std::string words = made->mark_ ? made->handle() : std::string();
  if (words.empty() || ::pwrite(made->mark_.get(), words.data(), words.size(), 0) !=
                           static_cast<ssize_t>(words.size()))
    return make_error(Code::io, errno,
                      fmt::format("cannot share memory with other processes: memfd_create: {}; "
                                  "ulimit -n sets the limit on descriptors", std::strerror(errno)));
  return std::shared_ptr<const ExportedMemory>(std::move(made));
}

std::string ExportedMemory::handle() const {
  Head head{};
  std::memcpy(head.magic, magic, sizeof magic);
  head.process = ::getpid();
  head.parts = static_cast<uint32_t>(parts_.size());
  head.started = start_of(head.process);
  head.serial = serial_;
  head.mark = mark_.get();
  std::string out(reinterpret_cast<const char*>(&head), sizeof head);
  for (const Part& part : parts_) {
    const uint64_t words[2] = {static_cast<uint64_t>(part.fd.get()), part.bytes};
    out.append(reinterpret_cast<const char*>(words), sizeof words);
  }
  return out;
}

std::optional<ExportedIdentity> identity_of(const std::string& handle) {
  Head head{};
  if (handle.size() < sizeof head) return std::nullopt;
  std::memcpy(&head, handle.data(), sizeof head);
  if (std::memcmp(head.magic, magic, sizeof magic) != 0) return std::nullopt;
  return ExportedIdentity{head.started, head.serial};
}

Result<std::unique_ptr<ImportedMemory>> ImportedMemory::open(const Driver& driver, int device,
                                                             const std::string& handle) {
  Head head{};
  if (handle.size() >= sizeof head) std::memcpy(&head, handle.data(), sizeof head);
  if (std::memcmp(head.magic, magic, sizeof magic) != 0 || head.parts == 0 ||
      head.parts > parts_most ||
      handle.size() != sizeof head + head.parts * 2 * sizeof(uint64_t))
    return invalid("cannot open shared memory: this Firn does not know its handle; both "
                   "processes need the same allocator (backend:firn) and the same version of "
                   "it");
  const Descriptor process(static_cast<int>(::syscall(SYS_pidfd_open, head.process, 0)));
  if (!process || start_of(head.process) != head.started)
    return make_error(Code::io, errno,
                      fmt::format("cannot open shared memory: its process {} has ended",
                                  head.process));
  const auto fetch = [&](uint64_t number) {
    return Descriptor(
        static_cast<int>(::syscall(SYS_pidfd_getfd, process.get(), static_cast<int>(number), 0)));
  };
  const auto trouble = [&](int why) -> Error {
    const char* advice = "";
    if (why == EPERM)
      advice = " (sharing needs the right to trace that process: sysctl kernel.yama.ptrace_scope, "
               "or prctl(PR_SET_PTRACER) there; in a container also a seccomp profile that allows "
               "it)";
    else if (why == ENOSYS)
      advice = " (sharing needs Linux 5.6, in a container also a seccomp profile that allows it)";
    else if (why == EBADF)
      advice = " (that process has freed it: keep it alive there until it is open here)";
    else if (why == EMFILE)
      advice = " (ulimit -n sets the limit on this process's descriptors)";
    return make_error(Code::io, why,
                      fmt::format("cannot open memory of process {}: pidfd_getfd: {}{}",
                                  head.process, std::strerror(why), advice));
  };
  std::vector<std::pair<CUmemGenericAllocationHandle, uint64_t>> frames;
  Error error;
  uint64_t all = 0;
  for (uint32_t i = 0; i < head.parts && error.code == Code::ok; ++i) {
    uint64_t words[2];
    std::memcpy(words, handle.data() + sizeof head + i * sizeof words, sizeof words);
    const Descriptor fd = fetch(words[0]);
    if (!fd) {
      error = trouble(errno);
      break;
    }
    CUmemGenericAllocationHandle frame = 0;
    const CUresult result = driver.mem_import_from_shareable_handle(
        &frame, reinterpret_cast<void*>(static_cast<intptr_t>(fd.get())),
        CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    if (result != CUDA_SUCCESS) {
      error = driver.error("cuMemImportFromShareableHandle", result);
      break;
    }
    frames.emplace_back(frame, words[1]);
    all += words[1];
  }
  // The numbers may belong to another export by now, or have been changed by somebody. (The mark is
  // closed first: while it is open, what was fetched before belongs to this export.)
  if (error.code == Code::ok) {
    const Descriptor fd = fetch(static_cast<uint64_t>(head.mark));
    std::string words(handle.size(), '\0');
    if (!fd)
      error = trouble(errno);
    else if (::pread(fd.get(), words.data(), words.size(), 0) !=
                 static_cast<ssize_t>(words.size()) ||
             words != handle)
      error = make_error(Code::io, 0,
                         fmt::format("process {} has freed the memory that it shared: keep it "
                                     "alive there until it is open here", head.process));
  }
  std::unique_ptr<ImportedMemory> made(new ImportedMemory(driver));
  if (error.code == Code::ok)
    if (Result<void> mapped = made->map(device, all, frames); !mapped) error = mapped.error();
  // Mappings outlive their handles.
  for (const auto& each : frames) (void)insist([&] { return driver.mem_release(each.first); });
  if (error.code != Code::ok) return error;
  return made;
}

Result<void> ImportedMemory::map(
    int device, uint64_t bytes,
    const std::vector<std::pair<CUmemGenericAllocationHandle, uint64_t>>& frames) {
  CUresult result = driver_.mem_address_reserve(&base_, bytes, granule_bytes, 0, 0);
  if (result != CUDA_SUCCESS) return driver_.error("cuMemAddressReserve", result);
  bytes_ = bytes;
  for (const auto& [frame, each] : frames) {
    result = driver_.mem_map(base_ + mapped_, each, 0, frame, 0);
    if (result != CUDA_SUCCESS) return driver_.error("cuMemMap", result);
    mapped_ += each;
  }
  CUmemAccessDesc access{};
  access.location = {CU_MEM_LOCATION_TYPE_DEVICE, device};
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  result = driver_.mem_set_access(base_, mapped_, &access, 1);
  if (result != CUDA_SUCCESS) return driver_.error("cuMemSetAccess", result);
  return {};
}

ImportedMemory::~ImportedMemory() {
  // Addresses with a mapping left are not given back.
  if (mapped_ && !insist([&] { return driver_.mem_unmap(base_, mapped_); })) return;
  if (bytes_) (void)insist([&] { return driver_.mem_address_free(base_, bytes_); });
}

}  // namespace firn
