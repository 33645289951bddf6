#include "allocator/preload/parameters.h"

namespace firn::preload {

namespace {
// As CUDA's markers for cuLaunchKernel's `extra`.
void* const extra_end = nullptr;
void* const extra_buffer = reinterpret_cast<void*>(1);
void* const extra_bytes = reinterpret_cast<void*>(2);
constexpr size_t extra_pairs_most = 8;

// More parameters than any kernel has: the limit for a driver that never says "no more".
constexpr size_t slots_most = 1u << 15;

std::vector<std::pair<uint32_t, uint32_t>> words_of(const std::vector<Slot>& slots) {
  std::vector<std::pair<uint32_t, uint32_t>> words;
  for (uint32_t i = 0; i < slots.size(); ++i) {
    uint32_t offset = (8 - slots[i].offset % 8) % 8;
    for (; offset + 8 <= slots[i].bytes; offset += 8) words.emplace_back(i, offset);
  }
  return words;
}

enum class Told { all, nothing, refused };

/// All slots, asked for one by one until the driver says that there are no more.
template <class Ask>
Told slots_from(Ask&& ask, std::vector<Slot>& slots) {
  slots.clear();
  for (size_t index = 0; index < slots_most; ++index) {
    size_t offset = 0, bytes = 0;
    const CUresult result = ask(index, &offset, &bytes);
    if (result == CUDA_SUCCESS) {
      slots.push_back({static_cast<uint32_t>(offset), static_cast<uint32_t>(bytes)});
      continue;
    }
    if (result != CUDA_ERROR_INVALID_VALUE) return Told::refused;
    return slots.empty() ? Told::nothing : Told::all;
  }
  return Told::refused;
}
}  // namespace

Kernels::~Kernels() = default;

/// The handle may be a function or a kernel: uses whichever query answers.
void Kernels::ask(Kernel& kernel) const {
  CUfunction function = kernel.function;
  Told told = Told::refused;
  if (queries_.function)
    told = slots_from([&](size_t i, size_t* offset, size_t* bytes) {
      return queries_.function(function, i, offset, bytes);
    }, kernel.slots);
  if (told != Told::all && queries_.kernel) {
    std::vector<Slot> slots;
    const Told as_kernel = slots_from([&](size_t i, size_t* offset, size_t* bytes) {
      return queries_.kernel(reinterpret_cast<CUkernel>(function), i, offset, bytes);
    }, slots);
    if (as_kernel == Told::all || told == Told::refused) {
      told = as_kernel;
      kernel.slots = std::move(slots);
    }
  }
  kernel.known = told != Told::refused;
  if (!kernel.known) {
    kernel.slots.clear();
    kernel.known = queries_.metadata && queries_.metadata(function, kernel.slots);
  }
  kernel.words = words_of(kernel.slots);
  kernel.module = nullptr;
  if (queries_.module_of && queries_.module_of(&kernel.module, function) != CUDA_SUCCESS)
    kernel.module = nullptr;
}

Kernel* Kernels::learn(CUfunction function, uint64_t generation) {
  auto fresh = std::make_unique<Kernel>();
  fresh->function = function;
  ask(*fresh);
  fresh->generation.store(generation, std::memory_order_relaxed);
  std::lock_guard lock(mutex_);
  std::atomic<Kernel*>* found = nullptr;
  // A refusal may be temporary (no context, an invalid handle): it is not kept.
  const bool keep = fresh->known || !(queries_.function || queries_.kernel);
  for (size_t at = hash(function), step = 0; keep && step < probes && !found; ++step, ++at) {
    std::atomic<Kernel*>& bucket = table_[at % capacity];
    Kernel* there = bucket.load(std::memory_order_relaxed);
    if (!there || there->function == function) found = &bucket;
  }
  if (!found) {
    thread_local std::unique_ptr<Kernel> last;
    last = std::move(fresh);
    return last.get();
  }
  if (Kernel* before = found->load(std::memory_order_relaxed)) {
    // Usually the same module loaded again: one Kernel is kept. What was seen of the old function
    // does not hold for the new one.
    if (before->known == fresh->known && before->slots == fresh->slots &&
        before->module == fresh->module) {
      before->looked_at = before->looked_at_with_tables = 0;
      before->stores_addresses = false;
      before->generation.store(generation, std::memory_order_release);
      return before;
    }
  } else {
    known_.fetch_add(1, std::memory_order_relaxed);
  }
  fresh->kept = true;
  Kernel* kernel = fresh.get();
  owned_.push_back(std::move(fresh));
  found->store(kernel, std::memory_order_release);
  return kernel;
}

bool read_extra(void* const* extra, PackedParameters& packed) {
  for (size_t pair = 0; *extra != extra_end; extra += 2) {
    if (++pair > extra_pairs_most) return false;
    if (*extra == extra_buffer)
      packed.buffer = extra[1];
    else if (*extra == extra_bytes && extra[1])
      packed.bytes = *static_cast<const size_t*>(extra[1]);
    else
      return false;
  }
  if (!packed.buffer) packed.bytes = 0;
  return true;
}

}  // namespace firn::preload
