/* Tells libFuzzer which blocks of the C codecs an input has reached.
 *
 * Code that gcc builds with -fsanitize-coverage=trace-pc calls a function at every block. The one
 * of libFuzzer refuses; the linker puts the one here in its place (--wrap), whose counters libFuzzer
 * reads beside those of Rust. What trace-cmp tells of floats nobody asks for.
 */

#include <stdint.h>

#define COUNTERS (1 << 16)

__attribute__((section("__libfuzzer_extra_counters"))) static uint8_t counters[COUNTERS];

void __wrap___sanitizer_cov_trace_pc(void) {
    uintptr_t block = (uintptr_t)__builtin_return_address(0);
    uint8_t *counter = &counters[(block ^ block >> 16) % COUNTERS];
    if (*counter < UINT8_MAX) {
        ++*counter;
    }
}

void __sanitizer_cov_trace_cmpf(float left, float right) { (void)left, (void)right; }

void __sanitizer_cov_trace_cmpd(double left, double right) { (void)left, (void)right; }
