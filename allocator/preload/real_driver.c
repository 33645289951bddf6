#define _GNU_SOURCE
#include "allocator/preload/real_driver.h"

#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static const char wanted[] = "libcuda.so.1";

/* Anything of this library: tells it from other objects of the same name. */
extern void* firn_targets[];

static int same_file(const char* a, const char* b) {
  struct stat one, other;
  return stat(a, &one) == 0 && stat(b, &other) == 0 && one.st_dev == other.st_dev &&
         one.st_ino == other.st_ino;
}

/* A library for this machine that is not the stand-in itself. */
static int usable(const char* path) {
  Dl_info own;
  if (dladdr((void*)firn_targets, &own) && own.dli_fname && same_file(path, own.dli_fname))
    return 0;
  const int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return 0;
  ElfW(Ehdr) header, native;
  const ssize_t got = read(fd, &header, sizeof header);
  close(fd);
  if (got != (ssize_t)sizeof header || memcmp(header.e_ident, ELFMAG, SELFMAG) != 0) return 0;
#if defined(__x86_64__)
  native.e_machine = EM_X86_64;
#elif defined(__aarch64__)
  native.e_machine = EM_AARCH64;
#endif
  return header.e_machine == native.e_machine && header.e_ident[EI_CLASS] == ELFCLASS64;
}

static int keep(const char* found, char* path, size_t size) {
  const size_t length = strlen(found);
  if (length >= size) return 0;
  memmove(path, found, length + 1);
  return 1;
}

/* "libcuda.so.1", or the file that its link leads to: "libcuda.so.580.65.06". */
static int is_driver_name(const char* path) {
  const char* slash = strrchr(path, '/');
  const char* name = slash ? slash + 1 : path;
  return strncmp(name, "libcuda.so", 10) == 0 && (name[10] == 0 || name[10] == '.');
}

static int loaded_driver(char* path, size_t size) {
  Dl_info own;
  struct link_map* map = NULL;
  if (!dladdr1((void*)firn_targets, &own, (void**)&map, RTLD_DL_LINKMAP) || !map) return 0;
  const struct link_map* self = map;
  while (map->l_prev) map = map->l_prev;
  for (; map; map = map->l_next)
    if (map != self && map->l_name && map->l_name[0] == '/' && is_driver_name(map->l_name) &&
        usable(map->l_name))
      return keep(map->l_name, path, size);
  return 0;
}

static int software_driver(const char* own_folder, char* path, size_t size) {
  /* Beside the stand-in in the package, and in the build folder. */
  static const char* const places[] = {"software/", "../../backing/gpu/software/"};
  const char* device = secure_getenv("FIRN_DEVICE");
  if (!device || strcmp(device, "software") != 0) return 0;
  for (size_t i = 0; i < sizeof places / sizeof *places; ++i)
    if ((size_t)snprintf(path, size, "%s%s%s", own_folder, places[i], wanted) < size &&
        usable(path))
      return 1;
  return 0;
}

const char* firn_find_in_cache(const char* bytes, size_t size, const char* name,
                               int (*takes)(const char* path)) {
  static const char magic[] = "glibc-ld.so.cache1.1";
  struct Entry {
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
  if (count > (left - head) / sizeof(struct Entry)) return NULL;
  for (uint32_t i = 0; i < count; ++i) {
    struct Entry entry;
    memcpy(&entry, table + head + i * sizeof entry, sizeof entry);
    if (entry.flags != native || entry.key >= left || entry.value >= left) continue;
    const char *key = table + entry.key, *value = table + entry.value;
    if (!memchr(key, 0, left - entry.key) || !memchr(value, 0, left - entry.value)) continue;
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
  const char* found = firn_find_in_cache(bytes, (size_t)about.st_size, wanted, usable);
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
              usable(path);
    if (!system && !found) found = cached_driver(path, size);
  }
  free(list);
  if (program) dlclose(program);
  return found;
}

int firn_find_real_driver(const char* own_folder, char* path, size_t size) {
  const char* named = secure_getenv("FIRN_DRIVER");
  if (named && named[0] == '/') return usable(named) && keep(named, path, size);
  return loaded_driver(path, size) || software_driver(own_folder, path, size) ||
         searched_driver(path, size);
}
