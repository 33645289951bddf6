/* The stand-in: a library with the driver's soname, in front of the real one. It is loaded into
 * every process under LD_PRELOAD, so it needs nothing but the C library and does nothing before the
 * first driver call. Then it opens the library behind, which handles memory and launches.
 *
 * This header is the interface of the two. C and C++. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#ifdef __cplusplus
#define FIRN_NOTHROW noexcept /* C is on the other side */
#else
#define FIRN_NOTHROW
#endif

#define FIRN_STAND_IN_VERSION 2

/* How the driver was reached, besides by its soname. */
struct FirnRoutes {
  uint64_t unversioned;       /* dlopen("libcuda.so"): led to the stand-in */
  uint64_t paths;             /* dlopen of a path: likewise */
  uint64_t other_drivers;     /* a second driver opened by its path: past the stand-in */
  uint64_t missing_entries;   /* entries that were called and that the real driver does not have */
  const char* missing_entry;  /* the last of them */
  const char* other_driver;   /* the last of those */
};

/* Passed from the stand-in to the library behind. All of it lives as long as the process. */
struct FirnStandIn {
  unsigned version;               /* FIRN_STAND_IN_VERSION: of one build, or nothing is handled */
  const char* library;            /* the real driver's path */
  void* handle;                   /* and dlopen's handle of it */
  const char* const* names;       /* every driver entry that the stand-in exports, sorted */
  unsigned names_count;
  void* (*real)(const char* name);  /* the real driver's entry, or null. Lock-free. */
  const struct FirnRoutes* routes;  /* counted on: read with __atomic_load_n */
};

/* Returned by the library behind. */
struct FirnBehind {
  /* The handler for the entry of that name; null: `real` answers it. */
  void* (*handler)(const char* name) FIRN_NOTHROW;
  /* For firn_stand_in() below: null where `what` is not known. */
  void* (*offer)(const char* what) FIRN_NOTHROW;
};

/* The library behind exports this one function. Null: it is of another build, or cannot serve. May
 * be called by several threads at once (a lock here could wait for the loader's): all get the same
 * answer. */
const struct FirnBehind* firn_behind_start(const struct FirnStandIn* stand_in) FIRN_NOTHROW;

/* The one name that the stand-in exports beside the driver's and dlopen: how Firn finds out that
 * the libcuda.so.1 it has opened is the stand-in. "driver": dlopen's handle of the real driver, null
 * where there is none; everything else is for the library behind. */
void* firn_stand_in(const char* what) FIRN_NOTHROW;

#ifdef __cplusplus
}
#endif
