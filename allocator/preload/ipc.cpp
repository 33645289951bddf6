// Memory that other processes open by a handle of 64 bytes. The driver has none for memory that is
// mapped piece by piece: where the memory is Firn's, the handle names a file of this process that
// tells how to find the frames (allocator/exported_memory.h), and both processes need this library.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <map>
#include <mutex>
#include <string>

#include "allocator/exported_identity.h"
#include "allocator/exported_memory.h"
#include "allocator/preload/engines.h"
#include "allocator/preload/handlers.h"
#include "allocator/preload/memory.h"
#include "firn/descriptor.h"

namespace firn::preload {

namespace {
const char* const reason = "given to other processes (cuIpcGetMemHandle)";
constexpr char magic[8] = {'f', 'i', 'r', 'n', '-', 'i', 'p', 'c'};

struct Handle {
  char magic[8];
  int32_t process, file;
  uint64_t place;  // of the block in the frames' bytes
  ExportedIdentity identity;  // the file's number and the addresses come again
};
static_assert(sizeof(Handle) <= sizeof(CUipcMemHandle));

struct Opened {
  std::unique_ptr<ImportedMemory> memory;
  CUcontext context;
  unsigned times;
  std::string handle;
};
struct Shared {
  std::mutex mutex;
  std::map<CUdeviceptr, std::pair<std::string, Descriptor>> files;  // by frames' base: words, file
  std::map<CUdeviceptr, Opened> opened;                      // by the address that was answered
};
Shared& shared() {
  static Shared& all = *new Shared;
  return all;
}

/// A file that holds the words; none where none can be made.
Descriptor file_of(const std::string& words) {
  Descriptor file(::memfd_create("firn-shared", MFD_CLOEXEC));
  if (file && ::write(file.get(), words.data(), words.size()) != static_cast<ssize_t>(words.size()))
    return Descriptor();
  return file;
}

std::string words_of(int process, int file) {
  const int there = static_cast<int>(::syscall(SYS_pidfd_open, process, 0));
  if (there < 0) return {};
  const int fd = static_cast<int>(::syscall(SYS_pidfd_getfd, there, file, 0));
  ::close(there);
  if (fd < 0) return {};
  std::string words;
  char part[4096];
  for (ssize_t got; (got = ::pread(fd, part, sizeof part, static_cast<off_t>(words.size()))) > 0;)
    words.append(part, static_cast<size_t>(got));
  ::close(fd);
  return words;
}

CUresult refuse(const Error& error) {
  std::fprintf(stderr, "firn: cuIpcOpenMemHandle: %s\n", describe(error).c_str());
  return error.code == Code::driver ? result_of(error) : CUDA_ERROR_MAP_FAILED;
}

CUresult open(CUdeviceptr* address, const CUipcMemHandle& passed, const Handle& told) {
  if (!address) return CUDA_ERROR_INVALID_VALUE;
  if (told.process == ::getpid()) return CUDA_ERROR_INVALID_CONTEXT;  // as the driver says
  Engine* engine = engine_here();
  CUdevice device = 0;
  if (!engine || real().cuCtxGetDevice(&device) != CUDA_SUCCESS) return CUDA_ERROR_INVALID_CONTEXT;
  std::lock_guard lock(shared().mutex);
  const std::string key(passed.reserved, sizeof passed.reserved);
  for (auto& [at, each] : shared().opened)
    if (each.handle == key && each.context == engine->context()) {
      ++each.times;
      *address = at;
      return CUDA_SUCCESS;
    }
  const Driver& driver = runtime_here()->driver();
  Driver::ContextGuard context(driver, engine->context());
  const std::string words = words_of(told.process, told.file);
  if (identity_of(words).value_or(told.identity) != told.identity)
    return refuse(make_error(Code::invalid_argument, 0,
                             "the memory that the handle is of was freed by its process"));
  auto memory = ImportedMemory::open(driver, device, words);
  if (!memory) return refuse(memory.error());
  *address = (*memory)->base() + told.place;
  shared().opened[*address] = {std::move(*memory), engine->context(), 1, key};
  return CUDA_SUCCESS;
}
}  // namespace

CUresult cuIpcGetMemHandle(CUipcMemHandle* handle, CUdeviceptr address) {
  const auto block = views().at(address) ? block_at(address) : std::nullopt;
  if (!block) return real().cuIpcGetMemHandle(handle, address);
  if (!handle) return CUDA_ERROR_INVALID_VALUE;
  auto exported =
      block->view->engine->export_memory(reinterpret_cast<const void*>(block->base), reason);
  if (!exported) return result_of(exported.error());
  const std::string words = (*exported)->handle();
  std::lock_guard lock(shared().mutex);
  auto& [known, file] = shared().files[(*exported)->base()];
  if (known != words || !file.ours()) {  // (of a block that was there before)
    known = words;
    file = file_of(words);
  }
  if (!file) return CUDA_ERROR_OUT_OF_MEMORY;
  Handle told{};
  std::memcpy(told.magic, magic, sizeof magic);
  told.process = ::getpid();
  told.file = file.get();
  told.place = block->base - (*exported)->base();
  told.identity = identity_of(words).value_or(ExportedIdentity{});
  std::memset(handle, 0, sizeof *handle);
  std::memcpy(handle, &told, sizeof told);
  return CUDA_SUCCESS;
}

CUresult cuIpcOpenMemHandle_v2(CUdeviceptr* address, CUipcMemHandle handle, unsigned flags) {
  Handle told{};
  std::memcpy(&told, &handle, sizeof told);
  if (std::memcmp(told.magic, magic, sizeof magic) == 0) return open(address, handle, told);
  return real().cuIpcOpenMemHandle_v2(address, handle, flags);
}
CUresult cuIpcOpenMemHandle(CUdeviceptr* address, CUipcMemHandle handle, unsigned flags) {
  Handle told{};
  std::memcpy(&told, &handle, sizeof told);
  if (std::memcmp(told.magic, magic, sizeof magic) == 0) return open(address, handle, told);
  return real().cuIpcOpenMemHandle(address, handle, flags);
}

CUresult cuIpcCloseMemHandle(CUdeviceptr address) {
  std::lock_guard lock(shared().mutex);
  const auto found = shared().opened.find(address);
  if (found == shared().opened.end()) return real().cuIpcCloseMemHandle(address);
  if (--found->second.times > 0) return CUDA_SUCCESS;
  if (CUresult result = wait_for_context(found->second.context)) return result;
  const Driver& driver = runtime_here()->driver();
  Driver::ContextGuard context(driver, found->second.context);
  shared().opened.erase(found);
  return CUDA_SUCCESS;
}

}  // namespace firn::preload
