// The loops for bfloat16 and float16: by far the most of the compiler's work.

#include "passes.h"

namespace indrnn {

INDRNN_DEFINE_TILES(BFloat16, float)
INDRNN_DEFINE_TILES(Float16, float)

}  // namespace indrnn
