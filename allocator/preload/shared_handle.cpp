#include "allocator/preload/shared_handle.h"

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstring>
#include <utility>

namespace firn::preload {

namespace {
constexpr char magic[8] = {'f', 'i', 'r', 'n', '-', 'i', 'p', 'c'};

constexpr size_t words_most = 32u << 20;  // more than any export's; the number may be any file's

struct Bytes {
  char magic[8];
  int32_t process, file;
  uint64_t offset;
  ExportedIdentity identity;
};
static_assert(sizeof(Bytes) <= sizeof(CUipcMemHandle));

std::string words_of(int process, int file) {
  const int there = static_cast<int>(::syscall(SYS_pidfd_open, process, 0));
  if (there < 0) return {};
  const int fd = static_cast<int>(::syscall(SYS_pidfd_getfd, there, file, 0));
  ::close(there);
  if (fd < 0) return {};
  std::string words;
  char part[4096];
  for (ssize_t got; words.size() < words_most &&
                    (got = ::pread(fd, part, sizeof part, static_cast<off_t>(words.size()))) > 0;)
    words.append(part, static_cast<size_t>(got));
  ::close(fd);
  return words;
}
}  // namespace

std::optional<SharedHandle> read_handle(const CUipcMemHandle& passed) {
  Bytes bytes{};
  std::memcpy(&bytes, &passed, sizeof bytes);
  if (std::memcmp(bytes.magic, magic, sizeof magic) != 0) return std::nullopt;
  return SharedHandle{bytes.process, bytes.file, bytes.offset, bytes.identity};
}

CUipcMemHandle handle_of(const SharedHandle& told) {
  Bytes bytes{};
  std::memcpy(bytes.magic, magic, sizeof magic);
  bytes.process = told.process;
  bytes.file = told.file;
  bytes.offset = told.offset;
  bytes.identity = told.identity;
  CUipcMemHandle handle{};
  std::memcpy(&handle, &bytes, sizeof bytes);
  return handle;
}

Descriptor words_file(const std::string& words) {
  Descriptor file(::memfd_create("firn-shared", MFD_CLOEXEC));
  if (file && ::write(file.get(), words.data(), words.size()) != static_cast<ssize_t>(words.size()))
    return Descriptor();
  return file;
}

Result<SharedBlock> open_shared(const Driver& driver, int device, const SharedHandle& told) {
  const std::string words = words_of(told.process, told.file);
  if (identity_of(words).value_or(told.identity) != told.identity)
    return invalid("the handle's process has freed its memory");
  auto memory = ImportedMemory::open(driver, device, words);
  if (!memory) return memory.error();
  SharedBlock opened{std::move(*memory), 0};
  if (told.offset >= opened.memory->bytes())
    return invalid("the handle was changed: its offset lies outside its memory");
  opened.address = opened.memory->base() + told.offset;
  return opened;
}

}  // namespace firn::preload
