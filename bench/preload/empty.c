/* The least that can be preloaded. */
extern int firn_empty;
__attribute__((visibility("default"))) int firn_empty = 0;
