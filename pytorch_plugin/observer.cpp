#include "pytorch_plugin/observer.h"

#include <ATen/autocast_mode.h>

#include <atomic>
#include <cstdio>
#include <mutex>
#include <string>
#include <string_view>

#include "allocator/runtime/runtime.h"
#include "pytorch_plugin/collectives.h"
#include "pytorch_plugin/firn_allocator.h"
#include "pytorch_plugin/list_operators.h"
#include "pytorch_plugin/recipes/given.h"
#include "pytorch_plugin/recipes/kept.h"
#include "pytorch_plugin/recipes/make_again.h"
#include "pytorch_plugin/recipes/remaking.h"
#include "pytorch_plugin/stalls.h"
#include "pytorch_plugin/torch_stream.h"

namespace firn::pytorch {

namespace {

std::atomic<bool> installed{false};
std::atomic<bool> always_spill{false};
std::atomic<bool> launches_seen{true};  // Firn is in front of the driver

/// Autocast is about to cast this operator's inputs and to call it again with them: that call
/// counts. Holding both would need room for the inputs twice.
bool autocast_comes_first(const OperatorInfo& info) {
  return info.has_autocast && at::autocast::is_autocast_enabled(at::kCUDA) &&
         !c10::impl::tls_is_dispatch_key_excluded(c10::DispatchKey::AutocastCUDA);
}

/// PyTorch would swallow a callback's exception with a warning and go on: makes it an error of the
/// running operator, like a failed touch.
template <class Work>
void without_throwing(ThreadScopes& scopes, Work&& work) noexcept {
  try {
    work();
  } catch (const std::exception& e) {
    scopes.note_trouble(std::string("could not examine an operator's tensors: ") + e.what());
  }
}

/// Of an operator that is about to run, alone in this thread.
bool wants_recipe(const OperatorInfo& info, const at::RecordFunction& record,
                  ThreadScopes& scopes) {
  bool wanted = info.remade && keeping_recipes() && keeps_recipes_of(*info.remade);
  if (giving_all())
    wanted |= info.remade != nullptr;
  else if (giving_recipes())
    wanted |= begin_remaking(info, record, scopes);
  return wanted;
}

/// It has run.
void take_recipe(const at::RecordFunction& record, ThreadScopes& scopes) {
  std::unique_ptr<Recipe>* recipe = finish_recipe(record);
  if (recipe) (*recipe)->stream = scopes.touched_stream((*recipe)->device);
  if (giving_all()) {
    if (recipe) give_all(**recipe);
  } else if (giving_recipes()) {
    end_remaking(record, recipe ? recipe->get() : nullptr);
  }
  if (recipe && keeping_recipes()) keep_recipe(*recipe);
}

std::unique_ptr<at::ObserverContext> start(const at::RecordFunction& record) {
  ThreadScopes& scopes = ThreadScopes::mine();
  without_throwing(scopes, [&] {
    const OperatorInfo* info = find_operator(record);
    if (!info || info->kind == OperatorInfo::Kind::passive ||
        info->kind == OperatorInfo::Kind::sliced || autocast_comes_first(*info))
      return;
    scopes.enter(&record, info);
    if (info->kind != OperatorInfo::Kind::uses) return;
    if (making_always.load(std::memory_order_relaxed) && scopes.alone(&record)) [[unlikely]]
      make_arguments_again(record.inputs());
    touch_arguments(scopes, *info, record.inputs());
    if ((keeping_recipes() || giving_recipes()) && scopes.alone(&record)) [[unlikely]]
      if (wants_recipe(*info, record, scopes)) begin_recipe(*info->remade, record);
    if (!info->trusted && !launches_seen.load(std::memory_order_relaxed)) [[unlikely]]
      scopes.keep_held("given to an operator that is not PyTorch's own, whose launches go unseen");
  });
  return nullptr;
}

void leave(ThreadScopes& scopes, const void* key) {
  if (!scopes.inside()) return;
  scopes.leave(key);
  if (always_spill.load(std::memory_order_relaxed) && !scopes.inside())
    if (Runtime* runtime = Runtime::get()) runtime->spill_all();
}

/// An object that an operator returns (packed weights, say) may keep its tensors, and give them to
/// unseen users. (Not the work of collectives: c10d keeps its tensors itself.)
bool keeps_tensors(const at::RecordFunction& record, const c10::IValue& result) {
  return result.isObject() && !std::string_view(record.name()).starts_with("c10d::");
}

void end(const at::RecordFunction& record, at::ObserverContext*) {
  ThreadScopes& scopes = ThreadScopes::mine();
  // A block that left an operator as a tensor is used by operators: it may leave the device. (One
  // that did not may be a workspace that its library keeps.)
  if (scopes.gives_results(&record))
    without_throwing(scopes, [&] {
      if (scopes.enqueued_nothing()) [[unlikely]]
        follow_collective(scopes, record.outputs());
      for (const c10::IValue& result : record.outputs()) {
        touch_results(scopes, result);
        if (keeps_tensors(record, result)) [[unlikely]]
          scopes.keep_held("kept by an object that an operator returned");
      }
      if (keeping_recipes() || giving_recipes()) [[unlikely]]
        take_recipe(record, scopes);
    });
  leave(scopes, &record);
  if (leaving_here) [[unlikely]]
    left_operator();
}

/// Whether a graph is being captured with memory of Firn's.
bool in_any_capture() {
  FirnAllocator* const allocator = installed_allocator();
  return allocator && allocator->pools().recording();
}

/// Anything may be written now; what is captured writes it at each replay, too, whether recipes are
/// kept now or only then.
void note_unseen(bool in_capture) {
  if (in_capture)
    Writes::all().give_up_all();
  else if (keeping_recipes())
    Writes::all().note_unseen();
}

/// Recipes that read or make what is written no longer stand.
void note_writes(const OperatorInfo& info, c10::ArrayRef<const c10::IValue> arguments,
                 bool in_capture) {
  if (info.written == 0) return;
  for (size_t i = 0; i < arguments.size(); ++i)
    if (info.writes(i))
      for_each_tensor(arguments[i], [&](c10::TensorImpl* tensor) {
        const c10::DispatchKeySet keys = tensor->key_set();
        if (!keys.has_backend(c10::BackendComponent::CUDABit)) return;
        if (!tensor->has_storage()) {  // of its parts, any may be written
          if (keys.has_any(c10::sparse_ks | c10::sparse_csr_ks)) note_unseen(in_capture);
          return;
        }
        const c10::StorageImpl* storage = tensor->unsafe_storage().unsafeGetStorageImpl();
        const void* const base = storage ? storage->data_ptr().get() : nullptr;
        if (!base) return;
        if (!FirnAllocator::made(*storage)) {  // it may begin within another (DLPack)
          note_unseen(in_capture);
        } else if (in_capture) {
          Writes::all().give_up(base);  // a replay writes it unseen
        } else {
          Writes::all().note(base);
        }
      });
}
}  // namespace

ObservedScope::~ObservedScope() { leave(scopes_, this); }

void touch_arguments(ThreadScopes& scopes, const OperatorInfo& info,
                     c10::ArrayRef<const c10::IValue> arguments) {
  scopes.begin_touches();
  for (size_t i = 0; i < arguments.size(); ++i) {
    const Access access = info.writes(i) ? Access::write : Access::read;
    for_each_tensor(arguments[i], [&](c10::TensorImpl* tensor) { scopes.touch(tensor, access); });
  }
  scopes.arguments_touched();
  const bool in_capture = scopes.pools() && scopes.pools()->recording();
  if (keeping_recipes() || in_capture) [[unlikely]]
    note_writes(info, arguments, in_capture);
}

void touch_results(ThreadScopes& scopes, const c10::IValue& result) {
  scopes.begin_touches();
  for_each_tensor(
      result, [&](c10::TensorImpl* tensor) { scopes.touch(tensor, Access::read, false); });
}

namespace {
const OperatorInfo use_of_memory{
    .name = "firn::use", .overload = "", .kind = OperatorInfo::Kind::uses};
}

void begin_use() { ThreadScopes::mine().enter(&use_of_memory, &use_of_memory); }

std::string use_memory(const void* pointer) {
  ThreadScopes& scopes = ThreadScopes::mine();
  note_unseen(in_any_capture());
  without_throwing(scopes, [&] { scopes.touch_address(pointer); });
  return scopes.take_trouble();
}

void note_enqueued(CUstream stream, Runtime::ContextOf context) {
  if (observing()) {
    ThreadScopes& scopes = ThreadScopes::mine();
    if (!scopes.launch_covered() && (keeping_recipes() || in_any_capture())) [[unlikely]]
      note_unseen(capture_status(stream) != cudaStreamCaptureStatusNone);
    return scopes.enqueues_on(stream, context);
  }
  // The stream is known, the uses are not: once operators are observed, all may be in use there.
  static thread_local CUstream last = nullptr;
  static thread_local bool known = false;
  if (known && last == stream) return;
  Runtime* const runtime = Runtime::get();
  const CUcontext of = context(stream);
  for (int device = 0; runtime && device < runtime->device_count(); ++device)
    if (Engine* engine = runtime->opened(device)) {
      engine->saw_stream(engine->stream_of(stream, of));
      known = true;
      last = stream;
    }
}

void end_use() { leave(ThreadScopes::mine(), &use_of_memory); }

void install_observer(bool spill_always) {
  static std::mutex mutex;
  std::lock_guard lock(mutex);
  if (spill_always) always_spill = true;
  if (installed) return;
  ThreadScopes::mine().begin_unseen();
  if (Runtime* runtime = Runtime::get(); runtime && !runtime->driver().stand_in) {
    launches_seen = false;
    std::fprintf(stderr, "firn: the GPU driver was opened before Firn could stand in front of it "
                         "(import torch before the library that opens it, or use firn run): Firn "
                         "sees only the launches of PyTorch's own operators, and the tensors of "
                         "other operators stay on the GPU\n");
  }
  register_list_operators();
  watch_registrations();
  at::addGlobalCallback(at::RecordFunctionCallback(start, end)
                            .needsInputs(true)
                            .needsOutputs(true)
                            .scopes({at::RecordScope::FUNCTION}));
  installed.store(true, std::memory_order_release);
  observer_is_there();
}

bool observing() { return installed.load(std::memory_order_acquire); }

}  // namespace firn::pytorch
