// The kernels, compiled for every instruction set that this compiler knows.

#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <utility>

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif
#if defined(__linux__)
#include <sys/auxv.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include "isa.h"
#include "team.h"

namespace specdec {

// Lanes of two vectors. GCC has the first name since version 12, clang no other.
#if __has_builtin(__builtin_shufflevector)
#define LANES_OF(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define LANES_OF(a, b, ...) __builtin_shuffle(a, b, ints{__VA_ARGS__})
#endif

// The baseline: no instruction set beyond what the compiler assumes.
#define ISA plain
#define PLAIN
#define LANES 4
#define VECTORS 2
#include "kernels.inc"

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define WITH_X86 1
#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c")
#define ISA avx2
#define LANES 8
#define VECTORS 2
#define WITH_MADDUBS
#include "kernels.inc"

#if __GNUC__ >= 11
#pragma GCC push_options
#pragma GCC target("avxvnni")
#define ISA avxvnni
#define LANES 8
#define VECTORS 2
#define DOT(sums, x, w) ints(_mm256_dpbusd_avx_epi32(__m256i(sums), __m256i(x), __m256i(w)))
#include "kernels.inc"
#pragma GCC pop_options
#endif

#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,prefer-vector-width=512")
#define ISA avx512
#define LANES 16
#define VECTORS 4
#define DOT(sums, x, w) ints(_mm512_dpbusd_epi32(__m512i(sums), __m512i(x), __m512i(w)))
#include "kernels.inc"

#if defined(__linux__) && __GNUC__ >= 11
#define WITH_MATRICES 1
#pragma GCC target("amx-tile,amx-int8")
#define ISA amx
#define LANES 16
#define VECTORS 4
#define WITH_AMX
#define DOT(sums, x, w) ints(_mm512_dpbusd_epi32(__m512i(sums), __m512i(x), __m512i(w)))
#include "kernels.inc"
#endif
#pragma GCC pop_options

#if WITH_MATRICES
// A process must ask the system for the registers of the matrix unit.
static bool may_use_matrices() {
  constexpr int kRequest = 0x1023, kTiles = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  return __builtin_cpu_supports("amx-int8") && syscall(SYS_arch_prctl, kRequest, kTiles) == 0;
}
#endif

#elif defined(__aarch64__) && defined(__linux__) && defined(__GNUC__) && !defined(__clang__)
#define WITH_ARM 1
#define ISA neon
#define LANES 4
#define VECTORS 4
#define WITH_SMULL
#include "kernels.inc"

#pragma GCC push_options
#pragma GCC target("arch=armv8.2-a+dotprod")
#define ISA dotprod
#define LANES 4
#define VECTORS 4
#define DOT(sums, x, w) ints(vdotq_s32(int32x4_t(sums), int8x16_t(w), int8x16_t(x)))
#include "kernels.inc"
#pragma GCC pop_options

#pragma GCC push_options
#pragma GCC target("arch=armv8.2-a+dotprod+i8mm")
#define ISA i8mm
#define LANES 4
#define VECTORS 4
#define WITH_SMMLA
#define DOT(sums, x, w) ints(vdotq_s32(int32x4_t(sums), int8x16_t(w), int8x16_t(x)))
#include "kernels.inc"
#pragma GCC pop_options
#endif

std::vector<const Isa*> usable() {
  std::vector<const Isa*> found;
#ifdef WITH_X86
  const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                        __builtin_cpu_supports("f16c");
  const bool has_avx512 =
      __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
#if WITH_MATRICES
  if (has_avx512 && may_use_matrices()) found.push_back(&amx::isa);
#endif
  if (has_avx512) found.push_back(&avx512::isa);
#if __GNUC__ >= 11
  if (has_avx2 && __builtin_cpu_supports("avxvnni")) found.push_back(&avxvnni::isa);
#endif
  if (has_avx2) found.push_back(&avx2::isa);
#elif defined(WITH_ARM)
  constexpr unsigned long kDotprod = 1ul << 20, kI8mm = 1ul << 13;  // HWCAP_ASIMDDP, HWCAP2_I8MM
  const bool has_dotprod = getauxval(AT_HWCAP) & kDotprod;
  if (has_dotprod && getauxval(AT_HWCAP2) & kI8mm) found.push_back(&i8mm::isa);
  if (has_dotprod) found.push_back(&dotprod::isa);
  found.push_back(&neon::isa);
#endif
  found.push_back(&plain::isa);
  const char* wanted = std::getenv("SPECDEC_INSTRUCTION_SET");
  if (wanted && *wanted) {
    const auto named = [&](const Isa* isa) { return !std::strcmp(isa->name, wanted); };
    const auto at = std::find_if(found.begin(), found.end(), named);
    if (at == found.end())
      throw std::invalid_argument(std::string("SPECDEC_INSTRUCTION_SET: this processor cannot run ") +
                                  wanted);
    std::rotate(found.begin(), at, at + 1);
  }
  return found;
}

const Isa& isa_of(const std::string& name) {
  for (const Isa* isa : usable())
    if (name.empty() || name == isa->name) return *isa;
  throw std::invalid_argument("this processor cannot run " + name);
}

}  // namespace specdec
