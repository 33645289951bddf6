/* The stand-in: a library with the driver's soname, in front of the real one. It is loaded into
 * every process under LD_PRELOAD, so it needs nothing but the C library and does nothing before the
 * first driver call; what handles memory and launches is a library of its own, opened then (behind).
 *
 * This header is what the two say to each other. C and C++. */
#pragma once

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

#define FIRN_STAND_IN_VERSION 1

/* What the stand-in tells the library behind. All of it lives as long as the process. */
struct FirnStandIn {
  unsigned version;               /* FIRN_STAND_IN_VERSION: of one build, or nothing is handled */
  const char* library;            /* the real driver's path */
  void* handle;                   /* and dlopen's handle of it */
  const char* const* names;       /* every driver entry that the stand-in exports, sorted */
  unsigned names_count;
  void* (*real)(const char* name);  /* the real driver's entry, or null. Lock-free. */
  void* (*next_dlopen)(const char* name, int flags);  /* past the stand-in's own */
};

/* And what the library behind answers. */
struct FirnBehind {
  /* What answers the entry of that name instead of `real`; null: the real one does. */
  void* (*handler)(const char* name);
  /* For firn_stand_in() below: null where `what` is not known. */
  void* (*offer)(const char* what);
};

/* The library behind exports this one function. 0: `behind` is filled. */
int firn_behind_start(const struct FirnStandIn* stand_in, struct FirnBehind* behind);

/* The one name that the stand-in exports beside the driver's and dlopen: how Firn finds out that the
 * libcuda.so.1 it has opened is the stand-in. "driver": dlopen's handle of the real driver, null
 * where there is none; everything else is for the library behind. */
void* firn_stand_in(const char* what);

#ifdef __cplusplus
}
#endif
