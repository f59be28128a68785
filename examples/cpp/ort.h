/* ONNX Runtime's C API: its own header where the compiler finds it, otherwise the declarations that the example needs.
 *
 * The header onnxruntime_c_api.h comes with the releases of ONNX Runtime and with Debian's package libonnxruntime-dev
 * (Debian 13 on). The Python wheel `onnxruntime` and the npm package `onnxruntime-node` have the library without it.
 *
 * The API is a table of function pointers. New functions are only ever added at its end, so a function's place in the
 * table is the same in all later versions. `gap` stands for functions in between that the example does not call.
 */
#ifndef RIPE_ORT_H
#define RIPE_ORT_H

#if defined(__has_include) && !defined(RIPE_OWN_ORT) /* -DRIPE_OWN_ORT: in any case the declarations below */
#if __has_include(<onnxruntime_c_api.h>)
#define RIPE_OFFICIAL_ORT
#endif
#endif

#ifdef RIPE_OFFICIAL_ORT
#include <onnxruntime_c_api.h>
#else

#include <stddef.h>
#include <stdint.h>

#define ORT_API_VERSION 17 /* the oldest release whose table is asked for; older libraries answer NULL */

typedef struct OrtStatus OrtStatus; /* NULL: no error */
typedef struct OrtEnv OrtEnv;
typedef struct OrtSession OrtSession;
typedef struct OrtSessionOptions OrtSessionOptions;
typedef struct OrtRunOptions OrtRunOptions;
typedef struct OrtAllocator OrtAllocator;
typedef struct OrtValue OrtValue;
typedef struct OrtTensorTypeAndShapeInfo OrtTensorTypeAndShapeInfo;

typedef enum { ORT_LOGGING_LEVEL_FATAL = 4 } OrtLoggingLevel;
typedef enum {
    ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT = 1,
    ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64 = 7,
    ONNX_TENSOR_ELEMENT_DATA_TYPE_DOUBLE = 11
} ONNXTensorElementDataType;

typedef struct OrtApi {
    void *gap_0[2];
    const char *(*GetErrorMessage)(const OrtStatus *);
    OrtStatus *(*CreateEnv)(OrtLoggingLevel, const char *name, OrtEnv **);
    void *gap_4[3];
    OrtStatus *(*CreateSession)(const OrtEnv *, const char *path, const OrtSessionOptions *, OrtSession **);
    void *gap_8[1];
    OrtStatus *(*Run)(OrtSession *, const OrtRunOptions *, const char *const *input_names, const OrtValue *const *inputs,
                      size_t input_count, const char *const *output_names, size_t output_count, OrtValue **outputs);
    OrtStatus *(*CreateSessionOptions)(OrtSessionOptions **);
    void *gap_11[13];
    OrtStatus *(*SetIntraOpNumThreads)(OrtSessionOptions *, int);
    void *gap_25[23];
    OrtStatus *(*CreateTensorAsOrtValue)(OrtAllocator *, const int64_t *shape, size_t dimensions,
                                         ONNXTensorElementDataType, OrtValue **);
    void *gap_49[2];
    OrtStatus *(*GetTensorMutableData)(OrtValue *, void **);
    void *gap_52[8];
    OrtStatus *(*GetTensorElementType)(const OrtTensorTypeAndShapeInfo *, ONNXTensorElementDataType *);
    void *gap_61[3];
    OrtStatus *(*GetTensorShapeElementCount)(const OrtTensorTypeAndShapeInfo *, size_t *);
    OrtStatus *(*GetTensorTypeAndShape)(const OrtValue *, OrtTensorTypeAndShapeInfo **);
    void *gap_66[12];
    OrtStatus *(*GetAllocatorWithDefaultOptions)(OrtAllocator **);
    void *gap_79[13];
    void (*ReleaseEnv)(OrtEnv *);
    void (*ReleaseStatus)(OrtStatus *);
    void *gap_94[1];
    void (*ReleaseSession)(OrtSession *);
    void (*ReleaseValue)(OrtValue *);
    void *gap_97[2];
    void (*ReleaseTensorTypeAndShapeInfo)(OrtTensorTypeAndShapeInfo *);
    void (*ReleaseSessionOptions)(OrtSessionOptions *);
} OrtApi;

typedef struct OrtApiBase {
    const OrtApi *(*GetApi)(uint32_t version); /* NULL: the library is older than that */
    const char *(*GetVersionString)(void);
} OrtApiBase;

#ifdef __cplusplus
extern "C"
#endif
const OrtApiBase *OrtGetApiBase(void);

#endif
#endif
