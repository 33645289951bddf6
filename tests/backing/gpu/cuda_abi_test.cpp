// Do firn/cuda_abi.h and the software GPU's abi.h agree with the real <cuda.h>? Skipped (77) where
// there is no <cuda.h>.
#include <gtest/gtest.h>

#include "cuda_abi_facts.h"

TEST(CudaAbi, agrees_with_the_real_header) {
#ifdef FIRN_TEST_REAL_HEADER
  const auto own = own_facts(), real = real_facts();
  ASSERT_EQ(own.size(), real.size());
  ASSERT_GT(own.size(), 150u);
  for (size_t i = 0; i < own.size(); ++i)
    EXPECT_EQ(own[i].value, real[i].value) << own[i].words << ", " << real[i].words;
#else
  GTEST_SKIP() << "no <cuda.h> on this machine";
#endif
}
