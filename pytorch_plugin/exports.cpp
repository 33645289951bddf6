// Python's entry points, by ctypes. Owns: the calling thread's last document. Locks: none.
#include <c10/util/Exception.h>

#include <cstdlib>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "allocator/runtime/runtime.h"
#include "firn/said.h"
#include "pytorch_plugin/firn_allocator.h"
#include "pytorch_plugin/no_spill.h"
#include "pytorch_plugin/observer.h"
#include "pytorch_plugin/recipes/kept.h"
#include "pytorch_plugin/recipes/make_again.h"
#include "pytorch_plugin/stalls.h"
#include "pytorch_plugin/torch_settings.h"
#include "pytorch_plugin/torch_stream.h"

#define FIRN_TORCH_API extern "C" __attribute__((visibility("default")))

namespace {

using namespace firn;

/// Copies as much as fits, with the terminating zero; the whole length comes back.
size_t give_text(const std::string& text, char* to, size_t size) {
  if (to && size > 0) {
    const size_t length = std::min(text.size(), size - 1);
    std::memcpy(to, text.data(), length);
    to[length] = 0;
  }
  return text.size();
}

Engine* engine_of(const void* pointer) {
  Runtime* runtime = Runtime::get();
  return runtime ? runtime->around(pointer) : nullptr;
}

/// Of the thread's last use in host memory.
std::vector<OnHost::Piece>& pieces_at_host() {
  static thread_local std::vector<OnHost::Piece> pieces;
  return pieces;
}

std::string& address_error() {
  static thread_local std::string words;
  return words;
}

int answer(const Result<void>& result, char* error, size_t size) {
  if (result) return 0;
  give_text(result.error().text, error, size);
  return 1;
}

void told_of(Engine& engine, const Error& error) {
  if (Runtime* runtime = Runtime::get()) runtime->refused(engine, error);
}

int answer(Engine& engine, const Result<void>& result, char* error, size_t size) {
  if (!result) told_of(engine, result.error());
  return answer(result, error, size);
}

/// Returns body()'s result; `failed` if it throws: nothing passes ctypes. `caught` gets the words.
template <class T, class Body, class Caught>
T door(T failed, Body&& body, Caught&& caught) noexcept {
  try {
    try {
      return body();
    } catch (const c10::Error& thrown) {
      caught(thrown.what_without_backtrace());
    } catch (const std::exception& thrown) {
      caught(thrown.what());
    }
  } catch (...) {  // no memory for the words
  }
  return failed;
}

template <class T, class Body>
T door(T failed, Body&& body) noexcept {
  return door(failed, body, [](const char* words) { say(std::string("firn: ") + words); });
}

template <class Body>
void door(Body&& body) noexcept {
  (void)door(0, [&] {
    body();
    return 0;
  });
}

using Ranges = std::span<const Engine::Addresses>;

/// Calls `act` once for each device, with the ranges on it and the current stream.
template <class Act>
int hint(const uint64_t (*ranges)[2], size_t count, char* error, size_t size, Act&& act) {
  return door(1, [&]() -> int {
    Runtime* runtime = Runtime::get();
    int failed = 0;
    for (int device = 0; runtime && device < runtime->device_count(); ++device) {
      Engine* engine = runtime->opened(device);
      std::vector<Engine::Addresses> of_it;
      for (size_t i = 0; engine && i < count; ++i)
        if (engine->contains(reinterpret_cast<const void*>(ranges[i][0])))
          of_it.push_back({ranges[i][0], ranges[i][1]});
      if (of_it.empty()) continue;
      const auto current = c10::cuda::getCurrentCUDAStream(static_cast<c10::DeviceIndex>(device));
      failed |= answer(act(*engine, of_it, pytorch::tell_stream(*engine, current)), error, size);
    }
    return failed;
  },
      [&](const char* words) { give_text(words, error, size); });
}

}  // namespace

/// Makes Firn PyTorch's CUDA allocator. `conf` as of PYTORCH_CUDA_ALLOC_CONF. 0: done; 1: malformed
/// `conf` (installed nevertheless: CUDA's start will say so); 2: not installed. `error`: one line.
FIRN_TORCH_API int firn_torch_install(const char* conf, char* error, size_t size) noexcept {
  try {
    pytorch::install_allocator(conf);
  } catch (const c10::Error& e) {
    give_text(e.what_without_backtrace(), error, size);
    return 2;
  } catch (const std::exception& e) {
    give_text(e.what(), error, size);
    return 2;
  }
  return door(1, [&] {
    Result<Config> config = parse_config(split_conf(conf).firn);
    if (config) return 0;
    give_text(config.error().text, error, size);
    return 1;
  });
}

/// "wanted\nfirn words\nother words": how C++ splits `conf` (tests compare Python's).
FIRN_TORCH_API size_t firn_torch_split_conf(const char* conf, char* text, size_t size) noexcept {
  return door(size_t{0}, [&]() -> size_t {
    const ConfWords words = split_conf(conf);
    return give_text((words.wanted ? "1\n" : "0\n") + words.firn + "\n" + words.rest, text, size);
  });
}

/// The statistics document; "" when Firn has not started.
FIRN_TORCH_API size_t firn_torch_stats(char* text, size_t size) noexcept {
  return door(size_t{0}, [&]() -> size_t {
    Runtime* runtime = Runtime::get();
    return give_text(runtime ? runtime->stats_json() : std::string(), text, size);
  });
}

/// The meaning of torch's own settings with Firn, as in README.
FIRN_TORCH_API size_t firn_torch_settings(char* text, size_t size) noexcept {
  return door(size_t{0}, [&]() -> size_t {
    return give_text(pytorch::settings_table(), text, size);
  });
}

/// Waits for memory: see stalls.h.
FIRN_TORCH_API size_t firn_torch_stalls(char* text, size_t size) noexcept {
  return door(size_t{0}, [&]() -> size_t {
    return give_text(pytorch::stalls_json(), text, size);
  });
}
FIRN_TORCH_API void firn_torch_call_sites(int asked) noexcept {
  door([&] {
    pytorch::ask_for_call_sites(pytorch::Asker::program, asked != 0);
  });
}

/// 1: nothing leaves the device until the matching 0.
FIRN_TORCH_API void firn_torch_no_spill(int enter) noexcept {
  door([&] {
    if (enter)
      pytorch::enter_no_spill();
    else
      pytorch::leave_no_spill();
  });
}

FIRN_TORCH_API int firn_torch_observing() noexcept {
  return door(0, [&]() -> int {
    return pytorch::observing() ? 1 : 0;
  });
}
FIRN_TORCH_API void firn_torch_observe() noexcept {
  door([&] {
    pytorch::install_observer(false);
  });
}

FIRN_TORCH_API int firn_torch_pin(void* pointer, char* error, size_t size) noexcept {
  return door(1, [&]() -> int {
    Engine* engine = engine_of(pointer);
    if (!engine) return 0;
    return answer(*engine, engine->pin(pointer, "firn.pin()"), error, size);
  },
      [&](const char* words) { give_text(words, error, size); });
}
/// Unseen uses of it so far are on `stream`, or over: the block does not leave before that.
FIRN_TORCH_API int firn_torch_unpin(void* pointer, void* stream, char* error, size_t size) noexcept {
  return door(1, [&]() -> int {
    Engine* engine = engine_of(pointer);
    if (!engine) return 0;
    Result<Hold> hold = engine->touch(pointer, static_cast<CUstream>(stream), Access::write);
    if (!hold) return answer(*engine, hold.error(), error, size);
    const int status = answer(engine->unpin(pointer), error, size);
    engine->release(*hold, static_cast<CUstream>(stream));
    return status;
  },
      [&](const char* words) { give_text(words, error, size); });
}
/// Hints at `count` ranges of addresses, each as (address, bytes), at their place in the calling
/// thread's current stream of their device: Engine::prefetch(), Engine::cold(). Ranges of others
/// are left out. 0, or 1 with the words in `error`: the other ranges are hinted.
FIRN_TORCH_API int firn_torch_prefetch(const uint64_t (*ranges)[2], size_t count, char* error,
                                       size_t size) noexcept {
  return hint(ranges, count, error, size, [](Engine& engine, Ranges of_it, CUstream stream) {
    return engine.prefetch(of_it, stream);
  });
}
FIRN_TORCH_API int firn_torch_cold(const uint64_t (*ranges)[2], size_t count, char* error,
                                   size_t size) noexcept {
  return hint(ranges, count, error, size, [](Engine& engine, Ranges of_it, CUstream stream) {
    return engine.cold(of_it, stream);
  });
}
/// Engine::on_host() of the storage at `pointer`, until firn_torch_end_on_host(name): 0, or as
/// firn::Code, with the words in `error`. The number of pieces; the calling thread gets them as
/// (offset, bytes, address) from firn_torch_host_pieces().
FIRN_TORCH_API int firn_torch_on_host(void* pointer, int writes, uint64_t* name, size_t* count,
                                      char* error, size_t size) noexcept {
  return door(static_cast<int>(Code::host_out_of_memory), [&]() -> int {
    Engine* engine = engine_of(pointer);
    if (!engine) {
      give_text("it is no memory of Firn's", error, size);
      return static_cast<int>(Code::invalid_argument);
    }
    Result<OnHost> there = engine->on_host(pointer, writes ? Access::write : Access::read);
    if (!there) {
      told_of(*engine, there.error());
      give_text(there.error().text, error, size);
      return static_cast<int>(there.error().code);
    }
    *name = there->name;
    *count = there->pieces.size();
    pieces_at_host() = std::move(there->pieces);
    return 0;
  },
      [&](const char* words) { give_text(words, error, size); });
}
FIRN_TORCH_API void firn_torch_host_pieces(uint64_t (*pieces)[3]) noexcept {
  for (const OnHost::Piece& piece : std::exchange(pieces_at_host(), {})) {
    (*pieces)[0] = piece.offset;
    (*pieces)[1] = piece.bytes;
    (*pieces++)[2] = reinterpret_cast<uint64_t>(piece.data);
  }
}
FIRN_TORCH_API void firn_torch_end_on_host(void* pointer, uint64_t name) noexcept {
  door([&] {
    if (Engine* engine = engine_of(pointer)) (void)engine->end_on_host(name);
  });
}
/// The bare address of a tensor's memory is about to leave PyTorch: `how` names the way (below).
/// 0: done, or not Firn's; else as firn::Code, with the words for firn_torch_address_error().
FIRN_TORCH_API int firn_torch_give_address(void* pointer, int how) noexcept {
  return door(static_cast<int>(Code::host_out_of_memory), [&]() -> int {
    static constexpr const char* reasons[] = {
        "its address was asked for (data_ptr())", "exported by DLPack",
        "exported by __cuda_array_interface__", "registered for direct storage access (cuFile)"};
    Engine* engine = engine_of(pointer);
    if (!engine) return 0;
    Result<void> given = engine->give_address(pointer, reasons[how]);
    if (given) return 0;
    told_of(*engine, given.error());
    address_error() = given.error().text;
    return static_cast<int>(given.error().code);
  },
      [](const char* words) { address_error() = words; });
}
FIRN_TORCH_API size_t firn_torch_address_error(char* text, size_t size) noexcept {
  return door(size_t{0}, [&]() -> size_t {
    return give_text(address_error(), text, size);
  });
}
/// Whether all launches are seen as they are made, whoever makes them: Firn is in front of the
/// driver.
FIRN_TORCH_API int firn_torch_sees_launches() noexcept {
  return door(0, [&]() -> int {
    Runtime* runtime = Runtime::get();
    return runtime && runtime->driver().stand_in ? 1 : 0;
  });
}
/// Until firn_torch_end_use(), this thread uses memory without PyTorch's operators: the blocks
/// given to firn_torch_use(), and all that it allocates meanwhile.
FIRN_TORCH_API void firn_torch_begin_use() noexcept {
  door([&] {
    pytorch::begin_use();
  });
}
FIRN_TORCH_API int firn_torch_use(void* pointer) noexcept {
  return door(1, [&]() -> int {
    address_error() = pytorch::use_memory(pointer);
    return address_error().empty() ? 0 : 1;
  },
      [](const char* words) { address_error() = words; });
}
FIRN_TORCH_API void firn_torch_end_use() noexcept {
  door([&] {
    pytorch::end_use();
  });
}
/// The state of the block around `pointer` in words ("resident", "spilled", ...); "" for foreign.
FIRN_TORCH_API size_t firn_torch_state(void* pointer, char* text, size_t size) noexcept {
  return door(size_t{0}, [&]() -> size_t {
    Engine* engine = engine_of(pointer);
    std::optional<BlockInfo> block = engine ? engine->find(pointer) : std::nullopt;
    return give_text(block ? block->state : "", text, size);
  });
}
FIRN_TORCH_API void firn_torch_spill_all() noexcept {
  door([&] {
    if (Runtime* runtime = Runtime::get()) runtime->spill_all();
  });
}
/// Spills what may be spilled of every second live block; the others stay (tests).
FIRN_TORCH_API void firn_torch_spill_half() noexcept {
  door([&] {
    Runtime* runtime = Runtime::get();
    for (int device = 0; runtime && device < runtime->device_count(); ++device) {
      Engine* engine = runtime->opened(device);
      if (!engine) continue;
      bool chosen = false;
      for (const BlockInfo& block : engine->blocks())
        if (block.live && !block.small && (chosen = !chosen)) (void)engine->cold(block.base, 1);
      engine->pump();
    }
  });
}
FIRN_TORCH_API void firn_torch_check() noexcept {
  door([&] {
    Runtime* runtime = Runtime::get();
    for (int device = 0; runtime && device < runtime->device_count(); ++device)
      if (Engine* engine = runtime->opened(device)) engine->check();
  });
}

/// Keeps recipes of storages of so many bytes and more; 0: none. `products`: of products, too. 1:
/// it cannot be (see keep_recipes()).
FIRN_TORCH_API int firn_torch_keep_recipes(size_t least_bytes, int products) noexcept {
  return door(1, [&]() -> int {
    return pytorch::keep_recipes(least_bytes, products != 0) ? 0 : 1;
  });
}
/// The recipe of the storage at `base`: see recipe_text().
FIRN_TORCH_API size_t firn_torch_recipe(void* base, char* text, size_t size) noexcept {
  return door(size_t{0}, [&]() -> size_t {
    return give_text(pytorch::recipe_text(base), text, size);
  });
}
/// Makes the bytes of the storage at `base` again. `spoil`: they are other ones before that.
FIRN_TORCH_API int firn_torch_make_again(void* base, void* stream, int spoil, char* error,
                                         size_t size) noexcept {
  return door(1, [&]() -> int {
    const std::string words =
        pytorch::make_again(base, static_cast<CUstream>(stream), spoil != 0);
    give_text(words, error, size);
    return words.empty() ? 0 : 1;
  },
      [&](const char* words) { give_text(words, error, size); });
}
/// 1: whatever an operator uses is made again before that, where it can be (tests).
FIRN_TORCH_API void firn_torch_always_make_again(int wanted) noexcept {
  door([&] {
    pytorch::always_make_again(wanted != 0);
  });
}
/// The list of operators: see remade_text().
FIRN_TORCH_API size_t firn_torch_remade(char* text, size_t size) noexcept {
  return door(size_t{0}, [&]() -> size_t {
    return give_text(pytorch::remade_text(), text, size);
  });
}
/// How many recipes were kept: see kept_text().
FIRN_TORCH_API size_t firn_torch_recipes(char* text, size_t size) noexcept {
  return door(size_t{0}, [&]() -> size_t {
    return give_text(pytorch::kept_text(), text, size);
  });
}
