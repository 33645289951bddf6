#include "pytorch_plugin/list_operators.h"

#include <torch/library.h>

#include <algorithm>
#include <map>
#include <memory>
#include <string_view>
#include <utility>

#include "allocator/runtime/runtime.h"
#include "pytorch_plugin/observer.h"

namespace firn::pytorch {

namespace {

using c10::IValue;
using torch::jit::Stack;

constexpr uint64_t sure_part = 16;  // lists and results within 1/16 of the budget are not cut
constexpr uint64_t whole_part = 2;  // nor those within 1/2 of what can be had
constexpr uint64_t slice_part = 8;  // slices are within 1/8 of it
constexpr c10::DispatchKeySet after_us(c10::DispatchKeySet::FULL_AFTER,
                                       c10::DispatchKey::BackendSelect);

uint64_t storage_bytes(const at::Tensor& tensor) {
  return tensor.defined() && tensor.is_cuda() && tensor.has_storage()
             ? tensor.unsafeGetTensorImpl()->unsafe_storage().nbytes()
             : 0;
}

/// The arguments that have one element per tensor, and how many elements that is. 0: not to be cut.
/// Lists of different lengths are for the operator to refuse: slices might not notice.
struct Lists {
  size_t length = 0;
  std::vector<size_t> arguments;  // lists
  std::vector<size_t> tensors;    // one-dimensional tensors of scalars, one for each
};

Lists find_lists(const c10::FunctionSchema& schema, c10::ArrayRef<IValue> arguments) {
  Lists lists;
  for (const IValue& argument : arguments)
    if (argument.isTensorList() && lists.length == 0) lists.length = argument.toListRef().size();
  for (size_t i = 0; i < arguments.size() && lists.length > 0; ++i) {
    size_t length = 0;
    if (arguments[i].isList()) {
      length = arguments[i].toListRef().size();
      if (length == 0) continue;  // left out: an optimizer's state that it does not have
      lists.arguments.push_back(i);
    } else if (arguments[i].isTensor() && schema.arguments()[i].name() == "scalars") {
      const at::Tensor& scalars = arguments[i].toTensor();
      length = scalars.dim() == 1 ? static_cast<size_t>(scalars.size(0)) : 0;
      lists.tensors.push_back(i);
    } else {
      continue;
    }
    if (length != lists.length) return {};
  }
  return lists;
}

/// The storages' bytes of a list from its element `at` on, elements that share one counted once.
uint64_t next_bytes(c10::ArrayRef<IValue> list, size_t at) {
  const at::Tensor& tensor = list[at].toTensor();
  if (at > 0) {
    const at::Tensor& before = list[at - 1].toTensor();
    if (tensor.defined() && before.defined() && tensor.has_storage() && before.has_storage() &&
        tensor.unsafeGetTensorImpl()->unsafe_storage().is_alias_of(
            before.unsafeGetTensorImpl()->unsafe_storage()))
      return 0;
  }
  return storage_bytes(tensor);
}

/// Result lists are at most as large as the first list given.
uint64_t result_lists(const c10::FunctionSchema& schema) {
  return static_cast<uint64_t>(
      std::count_if(schema.returns().begin(), schema.returns().end(), [](const auto& result) {
        return result.type()->kind() == c10::TypeKind::ListType && !result.alias_info();
      }));
}

/// How far a slice from `begin` goes: as many elements as `bytes_most` holds, at least one.
size_t slice_end(const Lists& lists, c10::ArrayRef<IValue> arguments, size_t begin,
                 uint64_t bytes_most) {
  uint64_t bytes = 0;
  for (size_t at = begin; at < lists.length; ++at) {
    for (size_t i : lists.arguments)
      if (arguments[i].isTensorList())
        bytes += at == begin ? storage_bytes(arguments[i].toListRef()[at].toTensor())
                             : next_bytes(arguments[i].toListRef(), at);
    if (bytes > bytes_most && at > begin) return at;
  }
  return lists.length;
}

IValue cut(const IValue& list, size_t begin, size_t end) {
  c10::List<IValue> all = list.toList();
  c10::impl::GenericList out(all.elementType());
  out.reserve(end - begin);
  for (size_t i = begin; i < end; ++i) out.push_back(all.get(i));
  return out;
}

c10::ArrayRef<const IValue> arguments_of(const Stack& stack) {
  return c10::ArrayRef<const IValue>(stack.data(), stack.size());
}

/// Appends a slice's results to those of the slices before.
void join(std::vector<IValue>& results, Stack& stack, size_t returns) {
  if (results.empty()) {
    results.assign(std::make_move_iterator(stack.end() - static_cast<ptrdiff_t>(returns)),
                   std::make_move_iterator(stack.end()));
    return;
  }
  for (size_t i = 0; i < returns; ++i) {
    const IValue& more = stack[stack.size() - returns + i];
    TORCH_INTERNAL_ASSERT(more.isList() && results[i].isList(), "firn: a result of slices");
    c10::List<IValue> joined = results[i].toList();
    for (const IValue& element : more.toListRef()) joined.push_back(element);
  }
}

/// Unlike the observer, a kernel can still refuse: before anything was written.
void touch_or_throw(ThreadScopes& scopes, const OperatorInfo& info,
                    c10::ArrayRef<IValue> arguments) {
  touch_arguments(scopes, info, arguments);
  scopes.throw_trouble();
}

/// The whole list at once. False: memory was short before anything was written; nothing was done.
bool run_whole(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack,
               const OperatorInfo& info, bool may_be_cut) {
  const size_t count = op.schema().arguments().size();
  std::vector<IValue> again;  // (The kernel takes its arguments from the stack.)
  if (may_be_cut && info.written == 0) again = torch::jit::last(*stack, count).vec();
  const size_t below = stack->size() - count;
  bool begun = false;
  struct MayBeCut {
    ThreadScopes& scopes = ThreadScopes::mine();
    const bool before = scopes.may_be_cut();  // of a list operator that calls this one
    explicit MayBeCut(bool may) { scopes.set_may_be_cut(may); }
    ~MayBeCut() { scopes.set_may_be_cut(before); }
  } cutting(may_be_cut);
  try {
    ObservedScope scope(info);
    touch_or_throw(scope.scopes(), info, arguments_of(*stack).slice(below));
    begun = true;
    if (info.written != 0) cutting.scopes.set_may_be_cut(false);
    op.redispatchBoxed(keys & after_us, stack);
    for (const IValue& result :
         arguments_of(*stack).slice(stack->size() - op.schema().returns().size()))
      touch_results(scope.scopes(), result);
  } catch (const c10::OutOfMemoryError&) {
    if (!may_be_cut || (begun && info.written != 0)) throw;
    if (!begun) return false;
    stack->resize(below);
    stack->insert(stack->end(), std::make_move_iterator(again.begin()),
                  std::make_move_iterator(again.end()));
    return false;
  }
  return true;
}

/// Elements from `begin` to `end` of each list; results are joined to those before. False: memory
/// was short before anything was written; nothing was done.
bool run_slice(const c10::OperatorHandle& op, c10::DispatchKeySet keys, const OperatorInfo& info,
               const Lists& lists, const std::vector<IValue>& arguments, size_t begin, size_t end,
               std::vector<IValue>& results) {
  Stack slice(arguments);
  for (size_t i : lists.arguments) slice[i] = cut(arguments[i], begin, end);
  for (size_t i : lists.tensors)
    slice[i] =
        arguments[i].toTensor().slice(0, static_cast<int64_t>(begin), static_cast<int64_t>(end));
  if (!run_whole(op, keys, &slice, info, end - begin > 1)) return false;
  join(results, slice, op.schema().returns().size());
  return true;
}

void run_slices(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack,
                const OperatorInfo& info, const Lists& lists, uint64_t bytes_most) {
  const std::vector<IValue> arguments =
      torch::jit::last(*stack, op.schema().arguments().size()).vec();
  torch::jit::drop(*stack, arguments.size());
  std::vector<IValue> results;
  size_t most = lists.length;  // elements, once memory is shorter than hoped
  for (size_t begin = 0; begin < lists.length;) {
    const size_t end = std::min(slice_end(lists, arguments, begin, bytes_most), begin + most);
    if (run_slice(op, keys, info, lists, arguments, begin, end, results))
      begin = end;
    else
      most = (end - begin) / 2;
  }
  for (IValue& result : results) stack->push_back(std::move(result));
}

class ListKernel final : public c10::OperatorKernel {
 public:
  ListKernel(OperatorInfo info, uint64_t results) : info_(std::move(info)), results_(results) {}

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
    auto arguments = torch::jit::last(*stack, op.schema().arguments().size());
    const Lists lists = find_lists(op.schema(), arguments);
    uint64_t bytes = 0, results = results_;
    int device = -1;
    for (size_t i : lists.arguments) {
      if (!arguments[i].isTensorList()) continue;
      const uint64_t before = bytes;
      const c10::ArrayRef<IValue> list = arguments[i].toListRef();
      for (size_t at = 0; at < list.size(); ++at) {
        const at::Tensor& tensor = list[at].toTensor();
        if (!tensor.defined() || !tensor.is_cuda()) continue;
        bytes += next_bytes(list, at);
        device = tensor.device().index();
      }
      bytes += std::exchange(results, 0) * (bytes - before);
    }
    Runtime* runtime = device >= 0 ? Runtime::get() : nullptr;
    Engine* engine = runtime ? runtime->opened(device) : nullptr;
    const bool may_be_cut = engine && lists.length > 1;
    uint64_t room = may_be_cut ? engine->budget_bytes() : 0;
    if (may_be_cut && bytes > room / sure_part) room = engine->room_at_most();
    if (!may_be_cut || bytes <= room / whole_part) {
      if (run_whole(op, keys, stack, info_, may_be_cut)) return;
    }
    run_slices(op, keys, stack, info_, lists, room / slice_part);
  }

 private:
  const OperatorInfo info_;
  const uint64_t results_;  // lists of new tensors
};

bool over_lists(const c10::OperatorHandle& op) {
  std::string_view name = op.schema().name();
  if (!name.starts_with("aten::_foreach_") && !name.starts_with("aten::_fused_adam") &&
      !name.starts_with("aten::_fused_sgd") && !name.starts_with("aten::_fused_adagrad") &&
      !name.starts_with("aten::_amp_foreach_non_finite_check_and_unscale"))
    return false;
  // Results can be joined when each of them is a list.
  return std::all_of(
      op.schema().returns().begin(), op.schema().returns().end(),
      [](const c10::Argument& result) { return result.type()->kind() == c10::TypeKind::ListType; });
}

}  // namespace

void register_list_operators() {
  static auto* library = new torch::Library(torch::Library::IMPL, "aten",
                                            c10::DispatchKey::BackendSelect, __FILE__, __LINE__);
  c10::Dispatcher& dispatcher = c10::Dispatcher::singleton();
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
    const std::optional<c10::OperatorHandle> op = dispatcher.findOp(name);
    if (!op || !op->hasSchema() || !over_lists(*op)) continue;
    if (op->hasKernelForDispatchKey(c10::DispatchKey::BackendSelect)) continue;
    OperatorInfo info = classify(*op);
    mark_sliced(name);
    const std::string full = toString(name);
    library->impl(
        full.c_str() + std::string_view("aten::").size(),
        torch::CppFunction::makeFromBoxedFunctor(
            std::make_unique<ListKernel>(std::move(info), result_lists(op->schema()))));
  }
}

}  // namespace firn::pytorch
