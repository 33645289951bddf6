// What is cut out of a recording: which kernels, and what each tensor is.
#include "allocator/record/iteration.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "tests/allocator/record/recorded_program.h"

namespace firn::record {
namespace {

class Cut : public ::testing::Test {
 protected:
  void train(int iterations, ZeroGrad zero_grad, uint32_t micro_batches = 1) {
    trainer_.make_model();
    for (int i = 0; i < iterations; ++i) trainer_.iteration(zero_grad, micro_batches);
  }
  void cut() {
    cut_ = cut_iteration(recording_);
    check();
  }
  /// What the reader would refuse.
  void check() const {
    for (const Iteration::Tensor& tensor : cut_.tensors) EXPECT_GT(tensor.bytes, 0u);
    for (const Iteration::Kernel& kernel : cut_.kernels) {
      EXPECT_GT(kernel.duration_ns, 0u);
      const auto begin = cut_.uses.begin() + static_cast<ptrdiff_t>(kernel.uses_at);
      for (auto [from, to] : {std::pair{begin, begin + kernel.inputs},
                              {begin + kernel.inputs, begin + kernel.inputs + kernel.outputs}}) {
        EXPECT_EQ(std::set<uint32_t>(from, to).size(), static_cast<size_t>(to - from));
        EXPECT_TRUE(std::all_of(from, to, [&](uint32_t t) { return t < cut_.tensors.size(); }));
      }
    }
  }
  Count count(uint64_t bytes) const {
    Count count;
    for (const Iteration::Tensor& tensor : cut_.tensors)
      if (tensor.bytes == bytes) ++(tensor.persistent ? count.persistent : count.transient);
    return count;
  }
  std::string name(size_t kernel) const {
    return recording_.name(recording_.kernels()[cut_.kernels[kernel].name]);
  }
  void expect_one_iteration(size_t kernels) const {
    EXPECT_TRUE(cut_.periodic);
    EXPECT_EQ(cut_.kernels.size(), kernels);
    for (uint32_t layer = 0; layer < trainer_.layers; ++layer) {
      EXPECT_EQ(count(Trainer::weight_bytes(layer)), (Count{1, 0}));
      EXPECT_EQ(count(Trainer::moment_bytes(layer)), (Count{1, 0}));
    }
  }

  Recording recording_;
  Trainer trainer_{recording_};
  Iteration cut_;
};

TEST_F(Cut, nothing_is_empty) {
  cut();
  EXPECT_TRUE(cut_.kernels.empty());
  recording_.allocate(1 << 20);
  cut();
  EXPECT_TRUE(cut_.kernels.empty());
}

TEST_F(Cut, without_a_period_everything_is_one_iteration) {
  train(1, ZeroGrad::at_the_start);
  cut();
  EXPECT_FALSE(cut_.periodic);
  EXPECT_EQ(cut_.kernels.size(), recording_.kernels().size());
  EXPECT_EQ(count(Trainer::weight_bytes(0)), (Count{1, 0}));      // never freed
  EXPECT_EQ(count(Trainer::activation_bytes(0)), (Count{0, 1}));
}

TEST_F(Cut, gradients_freed_at_the_start_are_transient) {
  train(6, ZeroGrad::at_the_start);
  cut();
  expect_one_iteration(trainer_.kernels());
  EXPECT_EQ(name(0), "forward0");
  EXPECT_EQ(name(trainer_.kernels() - 1), "step");
  for (uint32_t layer = 0; layer < trainer_.layers; ++layer) {
    EXPECT_EQ(count(Trainer::gradient_bytes(layer)), (Count{0, 1}));
    EXPECT_EQ(count(Trainer::activation_bytes(layer)), (Count{0, 1}));
  }
  EXPECT_EQ(count(Trainer::workspace_bytes), (Count{0, 4}));
  EXPECT_EQ(count(Trainer::loss_bytes), (Count{1, 0}));  // one is always alive
}

TEST_F(Cut, gradients_freed_at_the_end_are_transient) {
  train(6, ZeroGrad::at_the_end);
  cut();
  expect_one_iteration(trainer_.kernels());
  EXPECT_EQ(count(Trainer::gradient_bytes(0)), (Count{0, 1}));
}

/// Gradients and activations are never both absent: what is less is alive across the cut.
TEST_F(Cut, what_is_alive_across_every_cut_is_persistent) {
  train(6, ZeroGrad::after_forward);
  cut();
  expect_one_iteration(trainer_.kernels());
  for (uint32_t layer = 0; layer < trainer_.layers; ++layer) {
    EXPECT_EQ(count(Trainer::gradient_bytes(layer)), (Count{1, 0}));
    EXPECT_EQ(count(Trainer::activation_bytes(layer)), (Count{0, 1}));
  }
}

TEST_F(Cut, gradients_that_are_kept_are_persistent) {
  train(6, ZeroGrad::never);
  cut();
  expect_one_iteration(trainer_.kernels());
  EXPECT_EQ(count(Trainer::gradient_bytes(0)), (Count{1, 0}));
}

TEST_F(Cut, an_iteration_holds_all_its_micro_batches) {
  train(6, ZeroGrad::at_the_start, 3);
  cut();
  expect_one_iteration(trainer_.layers + 3 * (2 * trainer_.layers + 1));
  EXPECT_EQ(count(Trainer::activation_bytes(0)), (Count{0, 3}));
  EXPECT_EQ(count(Trainer::gradient_bytes(0)), (Count{0, 1}));
}

TEST_F(Cut, what_comes_after_the_last_iteration_is_left_out) {
  train(6, ZeroGrad::at_the_start);
  trainer_.tear_down();
  cut();
  expect_one_iteration(trainer_.kernels());
  for (size_t i = 0; i < cut_.kernels.size(); ++i) EXPECT_NE(name(i), "sum");
  EXPECT_EQ(count(Trainer::gradient_bytes(0)), (Count{0, 1}));
}

/// What is alive at the cut and used on both sides of the birth of its successor needs a tensor of
/// its own.
TEST_F(Cut, lives_that_overlap_are_two_tensors) {
  constexpr uint64_t state_bytes = 7'000'000;
  trainer_.make_model();
  uint32_t state = recording_.allocate(state_bytes);
  for (int i = 0; i < 6; ++i) {
    trainer_.iteration(ZeroGrad::at_the_start);
    const uint32_t next = recording_.allocate(state_bytes);
    recording_.kernel("advance", 10, std::vector{state}, std::vector{next});
    recording_.kernel("compare", 10, std::vector{state, next}, std::vector<uint32_t>{});
    recording_.free(state);
    recording_.kernel("look", 10, std::vector{next}, std::vector<uint32_t>{});
    state = next;
  }
  cut();
  expect_one_iteration(trainer_.kernels() + 3);
  EXPECT_EQ(count(state_bytes), (Count{2, 0}));
}

/// Made in one iteration, used and freed in the next before its successor is there, and never is
/// there less: one tensor for both.
TEST_F(Cut, what_is_handed_on_is_one_tensor) {
  constexpr uint64_t state_bytes = 7'000'000, between_bytes = 8'000'000;
  trainer_.make_model();
  uint32_t state = recording_.allocate(state_bytes);
  for (int i = 0; i < 6; ++i) {
    const uint32_t between = recording_.allocate(between_bytes);
    recording_.kernel("take", 10, std::vector{state}, std::vector{between});
    recording_.free(state);
    trainer_.iteration(ZeroGrad::at_the_end);
    state = recording_.allocate(state_bytes);
    recording_.kernel("give", 10, std::vector{between}, std::vector{state});
    recording_.free(between);
  }
  cut();
  expect_one_iteration(trainer_.kernels() + 2);
  EXPECT_EQ(count(state_bytes), (Count{1, 0}));
  EXPECT_EQ(count(between_bytes), (Count{0, 1}));
}

/// Saved, and not needed: it takes room until it is freed.
TEST_F(Cut, memory_that_is_not_used_any_more_lasts_until_its_free) {
  constexpr uint64_t saved_bytes = 7'000'000, small_bytes = 700;
  trainer_.make_model();
  for (int i = 0; i < 6; ++i) {
    const uint32_t saved = recording_.allocate(saved_bytes);
    const uint32_t small = recording_.allocate(small_bytes);
    recording_.kernel("save", 10, {}, std::vector{saved, small});
    trainer_.iteration(ZeroGrad::at_the_end);
    recording_.free(saved);
    recording_.free(small);
    recording_.kernel("tell", 10, std::vector{trainer_.loss}, {});
  }
  cut();
  expect_one_iteration(trainer_.kernels() + 2);
  EXPECT_EQ(count(saved_bytes), (Count{0, 1}));
  std::vector<std::string> users;
  for (size_t k = 0; k < cut_.kernels.size(); ++k) {
    const Iteration::Kernel& kernel = cut_.kernels[k];
    for (uint32_t tensor : std::span(cut_.uses).subspan(kernel.uses_at, kernel.inputs)) {
      EXPECT_NE(cut_.tensors[tensor].bytes, small_bytes);
      if (cut_.tensors[tensor].bytes == saved_bytes) users.push_back(name(k));
    }
  }
  EXPECT_EQ(users, std::vector<std::string>{"step"});
}

/// The names of what comes after repeat in every period.
TEST_F(Cut, copies_in_a_row_are_no_iteration) {
  train(5, ZeroGrad::at_the_start);
  for (size_t i = 0; i < 5 * trainer_.kernels(); ++i)
    recording_.kernel("copy", 10, std::vector{trainer_.weights[i % 4]}, {});
  cut();
  expect_one_iteration(trainer_.kernels());
  for (size_t i = 0; i < cut_.kernels.size(); ++i) EXPECT_NE(name(i), "copy");
}

/// A program that keeps a little more in every iteration.
TEST_F(Cut, what_is_never_freed_is_persistent) {
  trainer_.make_model();
  for (int i = 0; i < 6; ++i) {
    trainer_.iteration(ZeroGrad::at_the_start);
    const uint32_t kept = recording_.allocate(600);
    recording_.kernel("keep", 10, std::vector{trainer_.loss}, std::vector{kept});
  }
  cut();
  expect_one_iteration(trainer_.kernels() + 1);
  EXPECT_GE(count(600).persistent, 4);
  EXPECT_EQ(count(600).transient, 0);
}

TEST_F(Cut, unknown_times_are_those_of_the_iteration_before) {
  train(6, ZeroGrad::at_the_start);
  const auto kernels = static_cast<uint32_t>(recording_.kernels().size());
  for (uint32_t k = kernels - 5; k < kernels; ++k) recording_.set_duration(k, 0);
  cut();
  EXPECT_EQ(cut_.untimed, 0u);
  for (const Iteration::Kernel& kernel : cut_.kernels) EXPECT_EQ(kernel.duration_ns, 1000u);
  for (uint32_t k = 0; k < kernels; ++k) recording_.set_duration(k, 0);
  cut();
  EXPECT_EQ(cut_.untimed, cut_.kernels.size());
  EXPECT_EQ(cut_.kernels[0].duration_ns, 1u);
}

TEST_F(Cut, a_recording_says_when_it_is_full) {
  Recording small(10);
  const uint32_t block = small.allocate(1);
  for (int i = 0; i < 10; ++i) {
    EXPECT_FALSE(small.full());
    small.kernel("k", 1, std::vector{block}, {});
  }
  EXPECT_TRUE(small.full());
}

}  // namespace
}  // namespace firn::record
