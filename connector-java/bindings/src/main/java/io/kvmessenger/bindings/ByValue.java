package io.kvmessenger.bindings;

import java.lang.annotation.ElementType;
import java.lang.annotation.Retention;
import java.lang.annotation.RetentionPolicy;
import java.lang.annotation.Target;

/** A struct of bytes that is passed by value, and not a pointer to it. */
@Retention(RetentionPolicy.SOURCE)
@Target(ElementType.PARAMETER)
public @interface ByValue {
    /** Its length in bytes. */
    long value();
}
