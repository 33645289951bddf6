// Whether all that libfirn imports of the C library is known here: as a stand-in, or by name as
// what no machine lets fail, or as what stands behind another that fails.
#include <elf.h>
#include <link.h>

#include <cstring>
#include <iterator>
#include <string_view>

#include "tests/faults/interpose.h"

namespace firn::faults {
namespace {

constexpr std::string_view known[] = {
    // Pure, or of this process alone.
    "__assert_fail", "__environ", "__errno_location", "__libc_single_threaded", "__popcountdi2",
    "__register_atfork", "__stack_chk_fail", "__tls_get_addr", "__udivmodti4", "__udivti3",
    "_exit", "abort", "dladdr", "dlerror", "dlsym", "environ", "exp", "explicit_bzero", "free",
    "getpid", "geteuid", "llround", "localeconv", "localtime_r", "log", "memchr", "memcmp",
    "memcpy", "memmove", "memset", "on_exit", "pthread_self", "sched_yield", "secure_getenv",
    "sigfillset", "snprintf", "stderr", "strcmp", "strerror", "strftime", "strlen", "strncmp",
    "strrchr", "strtod", "strtol", "strtoll", "strtoull", "time",
    // Locks and clocks; what wakes and waits. Names of threads, for viewers.
    "clock_gettime", "pthread_cond_clockwait", "pthread_mutex_lock", "pthread_mutex_trylock",
    "pthread_mutex_unlock", "pthread_setname_np", "usleep",
    // These give something back.
    "close", "closedir", "fclose", "munmap", "shutdown", "waitpid",
    "posix_spawn_file_actions_destroy",
    // Of what has failed already, had it to: fopen, fdopen, posix_spawn.
    "fflush", "fprintf", "fputc", "fread", "fwrite", "vfprintf",
    "posix_spawn_file_actions_adddup2",
    "posix_spawn_file_actions_addopen", "posix_spawn_file_actions_init",
    // The C library's memory: io_uring's own tables, a moment's page. operator new stands for it.
    "aligned_alloc", "calloc",
    // The driver's library: missing it is another test's (driver's conformance).
    "dlopen",
    // (It is made so that io_uring's calls are trapped.)
    "pthread_sigmask"};

bool is_known(std::string_view name) {
#ifdef __SANITIZE_ADDRESS__
  for (const std::string_view theirs : {"__asan_", "__ubsan_", "__lsan_"})
    if (name.starts_with(theirs)) return true;
  if (name == "__umodti3") return true;  // of the compiler's own library
#endif
  if (name.empty() || name.starts_with("_Z") || name.starts_with("__cxa_") ||
      name.starts_with("_ITM_") || name.starts_with("_Unwind_") || name == "__gmon_start__" ||
      name == "__gxx_personality_v0")  // the C++ library
    return true;
  for (const std::string_view each : known)
    if (each == name) return true;
  std::string stand_in(name);
  if (stand_in.ends_with("64")) stand_in.resize(stand_in.size() - 2);
  return name_called(stand_in.c_str()) < names();
}

int look(dl_phdr_info* info, size_t, void* into) {
  if (!std::strstr(info->dlpi_name, "/libfirn.so")) return 0;
  auto& words = *static_cast<std::string*>(into);
  const char* strings = nullptr;
  const ElfW(Sym)* symbols = nullptr;
  const uint32_t* hashes = nullptr;
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    if (info->dlpi_phdr[i].p_type != PT_DYNAMIC) continue;
    const auto* entry = reinterpret_cast<const ElfW(Dyn)*>(info->dlpi_addr +
                                                           info->dlpi_phdr[i].p_vaddr);
    for (; entry->d_tag != DT_NULL; ++entry) {
      if (entry->d_tag == DT_STRTAB) strings = reinterpret_cast<const char*>(entry->d_un.d_ptr);
      if (entry->d_tag == DT_SYMTAB)
        symbols = reinterpret_cast<const ElfW(Sym)*>(entry->d_un.d_ptr);
      if (entry->d_tag == DT_GNU_HASH)
        hashes = reinterpret_cast<const uint32_t*>(entry->d_un.d_ptr);
    }
  }
  if (!strings || !symbols || !hashes) {
    words += " (libfirn's symbols cannot be read)";
    return 1;
  }
  // (All that is undefined comes before the first that is hashed: hashes[1] is its number.)
  for (uint32_t i = 1; i < hashes[1]; ++i)
    if (symbols[i].st_shndx == SHN_UNDEF && !is_known(strings + symbols[i].st_name))
      words += std::string(" ") + (strings + symbols[i].st_name);
  if (hashes[1] < std::size(known)) words += " (libfirn imports next to nothing)";
  return 1;
}

}  // namespace

std::string unknown_imports() {
  std::string words;
  if (::dl_iterate_phdr(look, &words) == 0) words = " (libfirn is not in this process)";
  return words;
}

}  // namespace firn::faults
