#include "pytorch_plugin/recipes/given.h"

#include <c10/cuda/CUDAStream.h>

#include <array>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>

#include "allocator/runtime/runtime.h"
#include "firn/remaker.h"
#include "pytorch_plugin/recipes/make_again.h"
#include "pytorch_plugin/recipes/proof.h"

namespace firn::pytorch {

namespace {

struct Given {
  Recipe recipe;
  size_t result_at = 0;
  std::unique_ptr<Proof> proof;  // of firn_verify:all
};

class GivenRecipes final : public Remaker {
 public:
  uint64_t add(const Recipe& recipe, size_t result_at, std::unique_ptr<Proof> proof) {
    auto given = std::make_shared<Given>();
    given->recipe.assign(recipe);
    given->result_at = result_at;
    given->proof = std::move(proof);
    std::lock_guard lock(mutex_);
    recipes_.emplace(++last_id_, std::move(given));
    return last_id_;
  }
  void remove(std::span<const uint64_t> ids) {
    std::lock_guard lock(mutex_);
    for (const uint64_t id : ids) recipes_.erase(id);
  }
  Result<void> remake(uint64_t id, void* address, size_t bytes, CUstream stream) noexcept override {
    std::shared_ptr<const Given> given;
    {
      std::lock_guard lock(mutex_);
      if (const auto found = recipes_.find(id); found != recipes_.end()) given = found->second;
    }
    if (!given) return make_error(Code::driver, 0, "its operator is not known any more");
    const TensorName& result = given->recipe.result(given->result_at);
    if (result.base != address || result.storage_bytes > bytes)
      return make_error(Code::driver, 0, "its operator wrote other memory");
    std::string error = run_again(given->recipe, given->result_at, stream);
    if (error.empty() && given->proof)
      error = words_of_errors([&]() -> std::string {
        const auto found = given->proof->confirm(given->recipe, given->result_at, stream);
        return found == Proof::Found::unknown ? "it could not be compared" : "";
      });
    if (error.empty()) return {};
    return make_error(Code::driver, 0,
                      toString(given->recipe.made_by->op.operator_name()) + ": " + error);
  }

 private:
  std::mutex mutex_;  // guards what follows
  std::unordered_map<uint64_t, std::shared_ptr<const Given>> recipes_;
  uint64_t last_id_ = 0;
};

GivenRecipes& given() {
  static auto* const all = new GivenRecipes;  // engines live until the very end
  return *all;
}

/// The blocks that the operator read, each by where its storage begins.
size_t inputs_of(const Recipe& recipe, std::array<const void*, Recipe::inputs_most>& inputs) {
  size_t count = 0;
  for (size_t i = 0; i < recipe.inputs; ++i)
    if (recipe.input(i).kind == TensorName::Kind::device && recipe.input(i).base)
      inputs[count++] = recipe.input(i).base;
  return count;
}

}  // namespace

bool give_recipes(Giving which) {
  Runtime* runtime = Runtime::get();
  if (!runtime || !runtime->driver().stand_in) return false;
  recipes::giving.store(which);
  return true;
}

bool can_be_given(const Recipe& recipe, size_t result_at) {
  if (recipe.made_by->differs || result_at >= recipe.results) return false;
  const TensorName& result = recipe.result(result_at);
  return result.kind == TensorName::Kind::device && result.base &&
         result.storage_bytes >= given_least_bytes;
}

bool give_recipe(const Recipe& recipe, size_t result_at, uint64_t device_ns) {
  if (!can_be_given(recipe, result_at)) return false;
  const TensorName& result = recipe.result(result_at);
  Runtime* runtime = Runtime::get();
  Engine* engine = runtime ? runtime->opened(recipe.device) : nullptr;
  if (!engine) return false;
  std::array<const void*, Recipe::inputs_most> inputs;
  const size_t count = inputs_of(recipe, inputs);
  engine->remake_with(&given());
  std::unique_ptr<Proof> proof;
  if (runtime->config().verify == "all") {
    proof = Proof::of(recipe, result_at, c10::cuda::getCurrentCUDAStream(recipe.device).stream());
    if (!proof) return false;
  }
  const uint64_t id = given().add(recipe, result_at, std::move(proof));
  const Result<void> taken = engine->give_recipe(
      result.base, {.id = id, .inputs = {inputs.data(), count}, .device_ns = device_ns,
                    .chosen = true, .keep_inputs = true});
  if (!taken) given().remove({&id, 1});
  given().remove(engine->take_ended_recipes());
  return static_cast<bool>(taken);
}

void give_up_recipe(Engine& engine, const void* base, int device) {
  const CUstream stream = c10::cuda::getCurrentCUDAStream(static_cast<c10::DeviceIndex>(device));
  const Result<Hold> hold = engine.touch(base, stream, Access::read);
  if (!hold) return;  // (Whoever uses it will be told.)
  (void)engine.choose_remake(base, false);
  engine.release(*hold, stream);
}

void give_all(const Recipe& recipe) {
  for (size_t i = 0; i < recipe.results; ++i) (void)give_recipe(recipe, i, 0);
}

}  // namespace firn::pytorch
