package io.kvmessenger.connector.boot;

import com.fasterxml.jackson.jr.ob.JSON;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.lang.reflect.RecordComponent;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/** Writes JSON. A record is an object with the names of its components. Pure functions. */
public final class Json {
    private Json() {}

    public static byte[] bytes(Object value) {
        try {
            return JSON.std.asBytes(plain(value));
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
    }

    private static Object plain(Object value) {
        if (value instanceof Record row) {
            Map<String, Object> fields = new LinkedHashMap<>();
            for (RecordComponent component : row.getClass().getRecordComponents()) {
                fields.put(component.getName(), plain(value(row, component)));
            }
            return fields;
        }
        return value instanceof List<?> list ? list.stream().map(Json::plain).toList() : value;
    }

    /** The value of a component of a public record. */
    public static Object value(Record row, RecordComponent component) {
        try {
            return component.getAccessor().invoke(row);
        } catch (ReflectiveOperationException e) {
            throw new LinkageError("a public record's accessor cannot be called", e);
        }
    }
}
