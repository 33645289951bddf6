#define _GNU_SOURCE
#include "allocator/preload/real_driver.h"

#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>
#include <limits.h>
#include <link.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "allocator/preload/parts.h"

static const char wanted[] = "libcuda.so.1";
static const char* preferred;

int firn_same_file(const char* a, const char* b) {
  struct stat one, other;
  return stat(a, &one) == 0 && stat(b, &other) == 0 && one.st_dev == other.st_dev &&
         one.st_ino == other.st_ino;
}

int firn_is_driver(const char* path) {
#if defined(__x86_64__)
  const int machine = EM_X86_64;
#elif defined(__aarch64__)
  const int machine = EM_AARCH64;
#endif
  char own[4096];
  if (firn_own_file(own, sizeof own) && firn_same_file(path, own)) return 0;
  const int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return 0;
  ElfW(Ehdr) header;
  const ssize_t got = read(fd, &header, sizeof header);
  close(fd);
  return got == (ssize_t)sizeof header && memcmp(header.e_ident, ELFMAG, SELFMAG) == 0 &&
         header.e_machine == machine && header.e_ident[EI_CLASS] == ELFCLASS64;
}

int firn_is_driver_name(const char* name) {
  return strncmp(name, "libcuda.so", 10) == 0 &&
         (name[10] == 0 ||
          (name[10] == '.' && name[11] && name[11 + strspn(name + 11, "0123456789.")] == 0));
}

void firn_prefer_driver(const char* path) {
  char* kept = strdup(path);
  if (kept) __atomic_store_n(&preferred, kept, __ATOMIC_RELEASE);  /* the old one may be in use */
}

/* False where it does not fit. */
static int keep(const char* found, char* path, size_t size) {
  const size_t length = strlen(found);
  if (length >= size) return 0;
  memmove(path, found, length + 1);
  return 1;
}

/* The file behind a mapped address, from the kernel: absolute, whatever the loader was given and
 * wherever the program went since. */
static int mapped_file(const void* address, char* path, size_t size) {
  FILE* maps = fopen("/proc/self/maps", "re");
  char line[4400];
  int found = 0;
  if (!maps) return 0;
  while (!found && fgets(line, sizeof line, maps)) {
    uintptr_t begin, end;
    char* name = strchr(line, '/');
    if (!name || sscanf(line, "%zx-%zx", &begin, &end) != 2) continue;
    name[strcspn(name, "\n")] = 0;
    found = (uintptr_t)address >= begin && (uintptr_t)address < end && keep(name, path, size);
  }
  fclose(maps);
  return found;
}

int firn_own_file(char* path, size_t size) {
  Dl_info own;
  if (dladdr((void*)firn_targets, &own) && own.dli_fname && own.dli_fname[0] == '/' &&
      keep(own.dli_fname, path, size))
    return 1;
  return mapped_file(wanted, path, size);
}

size_t firn_own_folder(char* folder, size_t size) {
  if (!firn_own_file(folder, size)) folder[0] = 0;
  char* slash = strrchr(folder, '/');
  const size_t length = slash ? (size_t)(slash - folder) + 1 : 0;
  if (size > 0) folder[length] = 0;
  return length;
}

static int loaded_driver(char* path, size_t size) {
  Dl_info own;
  struct link_map* map = NULL;
  if (!dladdr1((void*)firn_targets, &own, (void**)&map, RTLD_DL_LINKMAP) || !map) return 0;
  const struct link_map* self = map;
  while (map->l_prev) map = map->l_prev;
  for (; map; map = map->l_next)
    if (map != self && map->l_name && map->l_name[0] == '/' &&
        firn_is_driver_name(strrchr(map->l_name, '/') + 1) && firn_is_driver(map->l_name))
      return keep(map->l_name, path, size);
  return 0;
}

static int software_driver(const char* own_folder, char* path, size_t size) {
  /* Beside the stand-in in the package, and in the build folder. */
  static const char* const folders[] = {"software/", "../../backing/gpu/software/"};
  const char* device = secure_getenv("FIRN_DEVICE");
  if (!device || strcmp(device, "software") != 0) return 0;
  for (size_t i = 0; i < sizeof folders / sizeof *folders; ++i) {
    char found[PATH_MAX];
    if ((size_t)snprintf(path, size, "%s%s%s", own_folder, folders[i], wanted) < size &&
        firn_is_driver(path))
      return realpath(path, found) ? keep(found, path, size) : 1;
  }
  return 0;
}

const char* firn_find_in_cache(const char* bytes, size_t size, const char* name,
                               int (*takes)(const char* path)) {
  static const char magic[] = "glibc-ld.so.cache1.1";
  struct CachedLibrary {
    int32_t flags;
    uint32_t key, value, version;
    uint64_t hardware;
  };
  const size_t head = 48, magic_size = sizeof magic - 1;
#if defined(__x86_64__)
  const int32_t native = 0x303;
#elif defined(__aarch64__)
  const int32_t native = 0xa03;
#endif
  /* An older table may stand before it. */
  const char* table = bytes;
  size_t left = size;
  while (left >= head && memcmp(table, magic, magic_size) != 0) {
    const char* next = memchr(table + 1, magic[0], left - 1);
    if (!next) return NULL;
    left -= (size_t)(next - table);
    table = next;
  }
  if (left < head) return NULL;
  uint32_t count;
  memcpy(&count, table + magic_size, sizeof count);
  if (count > (left - head) / sizeof(struct CachedLibrary)) return NULL;
  for (uint32_t i = 0; i < count; ++i) {
    struct CachedLibrary library;
    memcpy(&library, table + head + i * sizeof library, sizeof library);
    if (library.flags != native || library.key >= left || library.value >= left) continue;
    const char *key = table + library.key, *value = table + library.value;
    if (!memchr(key, 0, left - library.key) || !memchr(value, 0, left - library.value)) continue;
    if (strcmp(key, name) == 0 && takes(value)) return value;
  }
  return NULL;
}

static int cached_driver(char* path, size_t size) {
  const int fd = open("/etc/ld.so.cache", O_RDONLY | O_CLOEXEC);
  if (fd < 0) return 0;
  struct stat about;
  void* bytes = MAP_FAILED;
  if (fstat(fd, &about) == 0 && about.st_size > 0)
    bytes = mmap(NULL, (size_t)about.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
  close(fd);
  if (bytes == MAP_FAILED) return 0;
  const char* found = firn_find_in_cache(bytes, (size_t)about.st_size, wanted,
                                                  firn_is_driver);
  const int kept = found && keep(found, path, size);
  munmap(bytes, (size_t)about.st_size);
  return kept;
}

static int is_system_folder(const char* folder) {
  return strncmp(folder, "/lib", 4) == 0 || strncmp(folder, "/usr/lib", 8) == 0;
}

/* The program's own search list has LD_LIBRARY_PATH in it, and ends with the system's folders;
 * the cache comes before those. */
static int searched_driver(char* path, size_t size) {
  void* program = dlopen(NULL, RTLD_LAZY);
  Dl_serinfo length;
  Dl_serinfo* list = NULL;
  int found = 0;
  if (program && dlinfo(program, RTLD_DI_SERINFOSIZE, &length) == 0 &&
      (list = malloc(length.dls_size)) != NULL) {
    *list = length;
    if (dlinfo(program, RTLD_DI_SERINFO, list) != 0) list->dls_cnt = 0;
  }
  unsigned own = list ? list->dls_cnt : 0;
  while (own > 0 && is_system_folder(list->dls_serpath[own - 1].dls_name)) --own;
  for (int system = 0; system < 2 && !found; ++system) {
    const unsigned begin = system ? own : 0, end = system ? (list ? list->dls_cnt : 0) : own;
    for (unsigned i = begin; i < end && !found; ++i)
      found = (size_t)snprintf(path, size, "%s/%s", list->dls_serpath[i].dls_name, wanted) < size &&
              firn_is_driver(path);
    if (!system && !found) found = cached_driver(path, size);
  }
  free(list);
  if (program) dlclose(program);
  return found;
}

static int named_driver(const char* named, char* path, size_t size) {
  return named && named[0] == '/' && firn_is_driver(named) && keep(named, path, size);
}

int firn_find_real_driver(const char* own_folder, char* path, size_t size) {
  const char* named = secure_getenv("FIRN_DRIVER");
  const int found =
      named && named[0] == '/'
          ? named_driver(named, path, size)
          : loaded_driver(path, size) || software_driver(own_folder, path, size) ||
                named_driver(__atomic_load_n(&preferred, __ATOMIC_ACQUIRE), path, size) ||
                searched_driver(path, size);
  if (!found) path[0] = 0;
  return found;
}
