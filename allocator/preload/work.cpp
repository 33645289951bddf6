#include "allocator/preload/work.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <unordered_set>

#include "allocator/preload/captures.h"
#include "allocator/preload/engines.h"
#include "allocator/preload/inspections.h"
#include "firn/said.h"

namespace firn::preload {

namespace {
// Where tables lead to more blocks than these, everything is touched instead.
constexpr size_t blocks_most = 1u << 16;

const void* pointer(uint64_t address) { return reinterpret_cast<const void*>(address); }

/// Under FIRN_TEST_ADVERSARIAL, spills everything that may leave before each piece of work. (Not
/// after it: the last work may wait for this very thread to go on.)
void spill_if_adversarial() {
  Runtime* runtime = runtime_here();
  if (!runtime || !runtime->config().adversarial || captures_under_way()) return;
  inspections().drain();
  runtime->spill_all();
}

}  // namespace

void say_why(const Error& error, const char* what, std::atomic<bool>& said) {
  if (error.code != Code::out_of_memory || said.exchange(true)) return;
  say_now(std::string("firn: ") + what + ": CUDA_ERROR_OUT_OF_MEMORY. " + error.text);
}

bool block_around(View& view, uint64_t address, Reached& block) {
  const auto info = view.engine->find(pointer(address));
  if (!info) return false;
  block = {&view, reinterpret_cast<uint64_t>(info->base), info->bytes};
  return true;
}

void Work::see_all() {
  views().refresh();
  for (unsigned i = 0, n = views().count(); i < n; ++i)
    for (const BlockInfo& block : views()[i].engine->blocks())
      if (block.live) see(reinterpret_cast<uint64_t>(block.base));
}

void Work::see_host(uint64_t address) {
  std::vector<uint64_t> words;
  if (!host_memory().collect(address, words)) {
    note_unseen("managed memory that the host cannot read beside kernels: all memory was touched");
    return see_all();
  }
  for (uint64_t word : words)
    if (views().at(word)) see(word);
}

Work::Part& Work::part_of(View& view) {
  if (!first_.view) first_.view = &view;
  if (first_.view == &view) return first_;
  for (const auto& part : others_)
    if (part->view == &view) return *part;
  others_.push_back(std::make_unique<Part>());
  others_.back()->view = &view;
  return *others_.back();
}

/// For blocks that are away, on their way, or have copies elsewhere. A block that does not fit is
/// used in host memory, at its address.
CUresult Work::touch_slow(Part& part, uint64_t word, Access access) {
  const CUstream stream = stream_for(*part.view);
  Engine& engine = *part.view->engine;
  Result<Hold> hold = engine.touch(pointer(word), stream, access, seen_as());
  if (!hold && hold.error().code == Code::out_of_memory) {
    if (guessed_ && patient_) return CUDA_ERROR_NOT_READY;
    counters().host_mapped_launches.fetch_add(1, std::memory_order_relaxed);
    hold = engine.touch_anyway(pointer(word), stream, access, seen_as());
  }
  if (!hold) {
    static std::atomic<bool> said{false};
    if (Runtime* runtime = runtime_here()) runtime->refused(engine, hold.error());
    say_why(hold.error(), "one launch or copy uses more memory than the budget", said);
    return result_of(hold.error());
  }
  if (hold->block) part.holds.push_back(*hold);
  return CUDA_SUCCESS;
}

CUresult Work::touch(Part& part, std::span<const uint64_t> words, Access access) {
  const Seen seen = seen_as();
  while (!words.empty()) {
    part.holds.reserve(part.holds.size() + words.size());
    size_t held = part.holds.size();
    const size_t done =
        part.view->engine->touch_many(words, access, part.holds.data(), held, seen);
    part.holds.grow_to(held);
    words = words.subspan(done);
    if (words.empty()) break;
    if (CUresult result = touch_slow(part, words.front(), access)) return result;
    words = words.subspan(1);
  }
  return CUDA_SUCCESS;
}

CUresult Work::hold_all(std::span<const uint64_t> words) {
  if (words.empty()) return CUDA_SUCCESS;
  if (!several_) return touch(part_of(*view_), words, Access::write);
  for (uint64_t word : words)
    if (View* view = views().at(word))
      if (CUresult result = touch(part_of(*view), {&word, 1}, Access::write)) return result;
  return CUDA_SUCCESS;
}

/// May any of its blocks hold addresses, or be yet to be inspected?
bool Work::leads_on() const {
  if (tables().foreign()) return true;
  const bool pending = inspections().pending();
  if (!pending && tables().words() == 0) return false;
  for (uint64_t word : words_) {
    View* view = views().at(word);
    Reached block;
    if (!view || !block_around(*view, word, block)) continue;
    if (tables().holds(block.base, block.bytes) || (pending && inspections().concerns(block.base)))
      return true;
  }
  return false;
}

/// A set of bases; no allocation while they are few, as usual.
class Visited {
 public:
  bool add(uint64_t base) {
    if (many_.empty()) {
      if (std::find(few_.begin(), few_.end(), base) != few_.end()) return false;
      few_.push_back(base);
      if (few_.size() == few) many_.insert(few_.begin(), few_.end());
      return true;
    }
    return many_.insert(base).second;
  }
  size_t size() const { return many_.empty() ? few_.size() : many_.size(); }

 private:
  static constexpr size_t few = 48;
  Small<uint64_t, few> few_;
  std::unordered_set<uint64_t> many_;
};

void Work::follow() {
  thread_local std::vector<uint64_t> next;
  next.assign(words_.begin(), words_.end());
  if (tables().foreign()) tables().collect_foreign(next);
  const bool pending = inspections().pending();
  Visited visited;
  const size_t given = words_.size();
  for (size_t i = 0; i < next.size(); ++i) {
    View* view = views().at(next[i]);
    Reached block;
    if (!view || !block_around(*view, next[i], block) || !visited.add(block.base))
      continue;
    if (visited.size() > blocks_most) {
      note_unseen("a pointer table leads to more than 65536 blocks: all of them were touched");
      return see_all();
    }
    if (i >= given) found_.push_back(block.base);
    if (view_ && view != view_) several_ = true;
    view_ = view;
    if (tables().holds(block.base, block.bytes)) tables().collect(block.base, block.bytes, next);
    if (pending) guessed_ |= inspections().reach(block.base, next);
  }
  followed_ = next.size() > given;
  if (followed_) counters().tables_followed.fetch_add(1, std::memory_order_relaxed);
}

CUresult Work::hold_once(bool follow_tables) {
  found_.clear();
  guessed_ = followed_ = false;
  if (follow_tables && leads_on()) follow();
  CUresult result = hold_all(words_);
  if (result == CUDA_SUCCESS) result = hold_all(found_);
  for (uint64_t word : reads_)
    if (View* view = views().at(word); view && result == CUDA_SUCCESS)
      result = touch(part_of(*view), {&word, 1}, Access::read);
  if (result != CUDA_SUCCESS) release(false);
  return result;
}

/// Blocks that earlier launches may lead to are held, too, until those are inspected. Where there
/// is no room for so many, waits for the inspections first.
CUresult Work::hold(bool follow_tables) {
  spill_if_adversarial();
  CUresult result = hold_once(follow_tables);
  if (result != CUDA_ERROR_NOT_READY) return result;
  inspections().drain();
  patient_ = false;
  return hold_once(follow_tables);
}

/// An exception left holds behind, maybe after the driver took the work: counts it as a use. If
/// that cannot be noted, the blocks stay, which costs room but never a byte.
void Work::end_thrown() noexcept {
  try {
    if (!ending_) return release(true);
  } catch (const std::exception&) {
  }
  say("firn: out of host memory while noting the blocks that a kernel uses: they stay on the "
      "device from here on");
}

void Work::release(bool enqueued) {
  ending_ = true;
  const auto end = [&](Part& part) {
    if (!part.view || part.holds.empty()) return;
    if (enqueued)
      part.view->engine->release_many(part.holds, stream_for(*part.view));
    else
      part.view->engine->release_unused(part.holds);
    part.holds.clear();
  };
  end(first_);
  for (const auto& part : others_) end(*part);
  ending_ = false;
}

std::vector<Reached> Work::reached() const {
  std::vector<Reached> all;
  Visited visited;
  const auto add = [&](uint64_t word) {
    View* view = views().at(word);
    Reached block;
    if (view && block_around(*view, word, block) && visited.add(block.base))
      all.push_back(block);
  };
  for (uint64_t word : words_) add(word);
  for (uint64_t word : found_) add(word);
  return all;
}

}  // namespace firn::preload
