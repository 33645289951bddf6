// A kernel with ten parameters, which is never run.
#define EXPORTED __attribute__((visibility("default")))
extern "C" EXPORTED const unsigned no_kernel_params[][2];
extern "C" EXPORTED const unsigned no_kernel_params[][2] = {
    {0, 8}, {8, 8}, {16, 8}, {24, 8}, {32, 8}, {40, 8}, {48, 8}, {56, 8}, {64, 8}, {72, 8}, {0, 0}};
extern "C" EXPORTED void no_kernel(void**, const unsigned*, const unsigned*) {}
