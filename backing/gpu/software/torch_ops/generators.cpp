// Random numbers of a CUDA generator, drawn on the CPU; see generators.h.
#include "backing/gpu/software/torch_ops/generators.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/MT19937RNGEngine.h>

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>

namespace firn::torch_ops {
namespace {

constexpr uint64_t words = at::MERSENNE_STATE_N;
constexpr uint64_t offset_per_draw = 4;
constexpr size_t marks_max = 512;

// The twister's next 624 words, as mt19937::next_state makes them.
void twist(at::mt19937_data_pod* data) {
  constexpr int n = at::MERSENNE_STATE_N;
  constexpr int m = at::MERSENNE_STATE_M;
  auto& state = data->state_;
  const auto mix = [](uint32_t high, uint32_t low) {
    const uint32_t joined = (high & at::UMASK) | (low & at::LMASK);
    return (joined >> 1) ^ ((low & 1) != 0 ? at::MATRIX_A : 0);
  };
  for (int i = 0; i < n - m; ++i) state[i] = state[i + m] ^ mix(state[i], state[i + 1]);
  for (int i = n - m; i < n - 1; ++i) state[i] = state[i + m - n] ^ mix(state[i], state[i + 1]);
  state[n - 1] = state[m - 1] ^ mix(state[n - 1], state[0]);
  data->left_ = n;
  data->next_ = 0;
}

// Where a twister stands: the number of draws since its seed.
struct Position {
  at::mt19937_data_pod data;
  uint64_t blocks = 0;  // twists since the seed

  uint64_t draws() const { return blocks == 0 ? 0 : words * (blocks - 1) + data.next_; }

  static Position fresh(uint64_t seed) { return {at::mt19937(seed).data(), 0}; }

  /// Moves forward to `target`, at least draws().
  void advance(uint64_t target) {
    const uint64_t block = (target + words - 1) / words;
    while (blocks < block) {
      twist(&data);
      ++blocks;
    }
    if (blocks == 0) return;
    data.next_ = static_cast<uint32_t>(target - words * (blocks - 1));
    data.left_ = static_cast<int>(words - data.next_ + 1);
  }
};

// A state met before, with the sample that the normal distribution keeps for the next call.
struct Mark {
  Position position;
  std::optional<float> next_float;
  std::optional<double> next_double;
};

class Companion {
 public:
  void draw(const at::Generator& cuda, const std::function<void(const at::Generator&)>& function) {
    const std::lock_guard lock(mutex_);
    stand_at(cuda.current_seed(), cuda.get_offset() / offset_per_draw);
    const at::mt19937_data_pod before = mark_.position.data;
    function(cpu_);
    follow(before);
    cuda.unsafeGetGeneratorImpl()->set_offset(mark_.position.draws() * offset_per_draw);
  }

 private:
  at::CPUGeneratorImpl* impl() const {
    return static_cast<at::CPUGeneratorImpl*>(cpu_.unsafeGetGeneratorImpl());
  }

  void stand_at(uint64_t seed, uint64_t draws) {
    if (!cpu_.defined() || seed != seed_) {
      cpu_ = at::detail::createCPUGenerator(seed);
      seed_ = seed;
      marks_.clear();
      mark_ = {Position::fresh(seed), {}, {}};
    }
    if (draws != mark_.position.draws()) {
      const auto after = marks_.upper_bound(draws);
      mark_ =
          after == marks_.begin() ? Mark{Position::fresh(seed), {}, {}} : std::prev(after)->second;
      if (mark_.position.draws() != draws) {
        mark_.position.advance(draws);
        mark_.next_float.reset();
        mark_.next_double.reset();
      }
    }
    if (marks_.size() >= marks_max) marks_.erase(marks_.begin());
    marks_.insert_or_assign(draws, mark_);
    at::mt19937 engine;
    engine.set_data(mark_.position.data);
    impl()->set_engine(engine);
    impl()->set_next_float_normal_sample(mark_.next_float);
    impl()->set_next_double_normal_sample(mark_.next_double);
  }

  // Finds how far the CPU generator went.
  void follow(const at::mt19937_data_pod& before) {
    const at::mt19937_data_pod after = impl()->engine().data();
    at::mt19937_data_pod shadow = before;
    while (shadow.state_ != after.state_) {
      twist(&shadow);
      ++mark_.position.blocks;
    }
    mark_.position.data = after;
    mark_.next_float = impl()->next_float_normal_sample();
    mark_.next_double = impl()->next_double_normal_sample();
  }

  std::mutex mutex_;
  at::Generator cpu_;
  uint64_t seed_ = 0;
  Mark mark_;
  std::map<uint64_t, Mark> marks_;  // by draws
};

Companion& companion_of(const at::Generator& generator) {
  static std::mutex mutex;
  static auto* const companions =
      new std::unordered_map<c10::GeneratorImpl*, std::unique_ptr<Companion>>;
  const std::lock_guard lock(mutex);
  auto& companion = (*companions)[generator.unsafeGetGeneratorImpl()];
  if (companion == nullptr) companion = std::make_unique<Companion>();
  return *companion;
}

thread_local at::Generator present;

}  // namespace

void with_cpu_generator(const at::Generator& generator,
                        const std::function<void(const at::Generator&)>& draw) {
  companion_of(generator).draw(generator, [&](const at::Generator& cpu) {
    struct Restore {
      at::Generator before = present;
      ~Restore() { present = before; }
    } const restore;
    present = cpu;
    draw(cpu);
  });
}

const at::Generator& present_cpu_generator() { return present; }

}  // namespace firn::torch_ops
