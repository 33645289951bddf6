// include/firn/firn.h on top of the runtime. Owns, per thread, the blocks announced by its last
// firn_touch() and its last error.
#include "firn/firn.h"

#include <cstring>
#include <exception>
#include <new>
#include <string>
#include <vector>

#include "allocator/runtime/runtime.h"

namespace {

using namespace firn;

thread_local std::string last_error;

struct Announced {
  struct Item {
    Engine* engine;
    Hold hold;
  };
  std::vector<Item> items;
  CUstream stream = nullptr;
  void end() {
    while (!items.empty()) {  // popped first: no hold is ended twice, whatever throws
      const Item item = items.back();
      items.pop_back();
      if (Runtime::get()) item.engine->release(item.hold, stream);
    }
  }
  ~Announced() { end(); }
};
thread_local Announced announced;

int status(const Error& error) {
  last_error = describe(error);
  switch (error.code) {
    case Code::ok: return FIRN_OK;
    case Code::invalid_argument: return FIRN_INVALID_ARGUMENT;
    case Code::out_of_memory: return FIRN_OUT_OF_MEMORY;
    case Code::host_out_of_memory: return FIRN_HOST_OUT_OF_MEMORY;
    case Code::driver: return FIRN_DRIVER;
    case Code::io:
    case Code::busy:
    case Code::no_space: return FIRN_IO;
    case Code::corrupt:
    case Code::lost: return FIRN_LOST;
    case Code::not_supported:
    case Code::cancelled: return FIRN_NOT_SUPPORTED;
  }
  return FIRN_NOT_SUPPORTED;
}

template <class T>
int status(const Result<T>& result) {
  return result ? FIRN_OK : status(result.error());
}

Engine* engine_of(const void* block, int& code) {
  Runtime* runtime = Runtime::get();
  Engine* engine = runtime ? runtime->around(block) : nullptr;
  code = engine ? FIRN_OK
                : status(invalid(runtime ? "the address is outside Firn's blocks"
                                 : "firn_init() was not called"));
  return engine;
}

/// The engine whose arena the range begins in, or reaches first from below; as engine_of().
Engine* engine_in(const void* block, size_t bytes, int& code) {
  Runtime* runtime = Runtime::get();
  const auto begin = reinterpret_cast<uint64_t>(block);
  Engine *first = runtime ? runtime->around(block) : nullptr, *above = nullptr;
  uint64_t nearest = bytes;
  for (int device = 0; runtime && !first && device < runtime->device_count(); ++device) {
    Engine* const engine = runtime->opened(device);
    const uint64_t base = engine ? engine->addresses().base : 0;
    if (base < begin || base - begin >= nearest) continue;
    nearest = base - begin;
    above = engine;
  }
  if (!first) first = above;
  if (!first) return engine_of(block, code);
  code = FIRN_OK;
  return first;
}

CUstream stream_of(firn_stream stream) { return static_cast<CUstream>(stream); }

/// Returns body's result; if it throws, FIRN_HOST_OUT_OF_MEMORY, with the words as last error: a
/// caller in another language must not see an exception.
template <class Body>
int door(Body&& body) noexcept {
  const char* words = "the process is out of host memory";
  try {
    try {
      return body();
    } catch (const std::bad_alloc&) {
      last_error = words;
    } catch (const std::exception& thrown) {
      last_error = thrown.what();
    }
  } catch (...) {  // no memory even for the words
    last_error.clear();
  }
  return FIRN_HOST_OUT_OF_MEMORY;
}

}  // namespace

extern "C" {

int firn_init(const char* conf) noexcept {
  return door([&]() -> int {
    Result<Config> config = parse_config(conf ? conf : "");
    if (!config) return status(config.error());
    return status(Runtime::start(*config));
  });
}

int firn_malloc(void** block, size_t bytes, int device, firn_stream stream) noexcept {
  return door([&]() -> int {
    *block = nullptr;
    Runtime* runtime = Runtime::get();
    if (!runtime)
      return status(invalid("firn_init() was not called"));
    Result<Engine*> engine = runtime->device(device);
    if (!engine) return status(engine.error());
    Result<void*> made = (*engine)->allocate(bytes, stream_of(stream));
    if (made)
      *block = *made;
    else
      runtime->refused(**engine, made.error());
    return status(made);
  });
}

int firn_free(void* block, firn_stream stream) noexcept {
  return door([&]() -> int {
    if (!block) return FIRN_OK;
    int code;
    Engine* engine = engine_of(block, code);
    if (!engine) return code;
    // No effect when it is the allocation's own stream.
    if (Result<void> recorded = engine->record_stream(block, stream_of(stream)); !recorded)
      return status(recorded.error());
    return status(engine->free(block));
  });
}

int firn_touch(void* const* blocks, const int* access, size_t count, firn_stream stream) noexcept {
  return door([&]() -> int {
    announced.end();
    announced.stream = stream_of(stream);
    Runtime* runtime = Runtime::get();
    if (!runtime)
      return status(invalid("firn_init() was not called"));
    announced.items.reserve(count);  // so that each hold has room
    try {
      for (size_t i = 0; i < count; ++i) {
        Engine* engine = runtime->around(blocks[i]);
        if (!engine) continue;
        Access how = access && access[i] == FIRN_READ ? Access::read : Access::write;
        Result<Hold> hold = engine->touch(blocks[i], announced.stream, how);
        if (!hold) {
          announced.end();
          runtime->refused(*engine, hold.error());
          return status(hold.error());
        }
        if (hold->block) announced.items.push_back({engine, *hold});
      }
    } catch (const std::bad_alloc&) {
      announced.end();
      throw;
    }
    return FIRN_OK;
  });
}

void firn_launched(void) noexcept {
  (void)door([] {
    announced.end();
    return FIRN_OK;
  });
}

int firn_prefetch(void* block, size_t bytes, firn_stream stream) noexcept {
  return door([&]() -> int {
    int code;
    Engine* engine = engine_in(block, bytes, code);
    return engine ? status(engine->prefetch(block, bytes, stream_of(stream))) : code;
  });
}

int firn_cold(void* block, size_t bytes) noexcept {
  return door([&]() -> int {
    int code;
    Engine* engine = engine_in(block, bytes, code);
    return engine ? status(engine->cold(block, bytes)) : code;
  });
}

int firn_pin(void* block) noexcept {
  return door([&]() -> int {
    int code;
    Engine* engine = engine_of(block, code);
    if (!engine) return code;
    const Result<void> pinned = engine->pin(block, "firn_pin()");
    if (Runtime* runtime = pinned ? nullptr : Runtime::get())
      runtime->refused(*engine, pinned.error());
    return status(pinned);
  });
}

int firn_unpin(void* block) noexcept {
  return door([&]() -> int {
    int code;
    Engine* engine = engine_of(block, code);
    return engine ? status(engine->unpin(block)) : code;
  });
}

size_t firn_stats(char* text, size_t size) noexcept {
  size_t length = 0;
  if (text && size > 0) text[0] = 0;
  (void)door([&] {
    Runtime* runtime = Runtime::get();
    const std::string document = runtime ? runtime->stats_json() : "{}";
    if (text && size > 0) {
      const size_t count = std::min(size - 1, document.size());
      std::memcpy(text, document.data(), count);
      text[count] = 0;
    }
    length = document.size();
    return FIRN_OK;
  });
  return length;
}

void firn_shutdown(void) noexcept {
  (void)door([] {
    announced.end();
    if (Runtime* runtime = Runtime::get()) runtime->stop();
    return FIRN_OK;
  });
}

const char* firn_error(void) noexcept { return last_error.c_str(); }

}  // extern "C"
